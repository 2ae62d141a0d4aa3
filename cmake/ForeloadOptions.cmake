# Project-wide settings, carried by one interface target (foreload_options) that every target of ours links.

set(FORELOAD_URING AUTO CACHE STRING "io_uring backend: AUTO, ON (missing fails) or OFF")
set_property(CACHE FORELOAD_URING PROPERTY STRINGS AUTO ON OFF)
option(FORELOAD_TESTS "Build the tests" ON)
option(FORELOAD_BENCH "Build the benchmarks" ON)
option(FORELOAD_FUZZ "Build the libFuzzer targets (needs Clang)" OFF)
set(FORELOAD_SANITIZE "" CACHE STRING "Sanitizers for -fsanitize=, empty for none")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()

find_program(FORELOAD_CCACHE ccache)
if(FORELOAD_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${FORELOAD_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${FORELOAD_CCACHE})
endif()

add_library(foreload_options INTERFACE)
target_include_directories(foreload_options INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}>)
# -ffp-contract=off: decisions must not depend on whether the machine has fused multiply-add.
target_compile_options(foreload_options INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -ffp-contract=off)
if(CMAKE_UNITY_BUILD)  # every file is then an included one
  target_compile_options(foreload_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endif()
if(FORELOAD_SANITIZE)
  target_compile_options(foreload_options INTERFACE -fsanitize=${FORELOAD_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(foreload_options INTERFACE -fsanitize=${FORELOAD_SANITIZE})
endif()
find_package(Threads REQUIRED)
target_link_libraries(foreload_options INTERFACE Threads::Threads)
