include(GoogleTest)

if(FORELOAD_SANITIZE STREQUAL "thread")
  set(foreload_tsan_sources ${PROJECT_SOURCE_DIR}/tests/tsan_suppressions.cc)
endif()

# One test binary per module: foreload_add_test(telemetry_test SOURCES a.cc b.cc LIBRARIES foreload_telemetry).
# Each TEST becomes one ctest entry.
function(foreload_add_test name)
  if(NOT FORELOAD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES} ${foreload_tsan_sources})
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} GTest::gtest GTest::gmock GTest::gtest_main)
  if(RAPIDCHECK_LIBRARY)
    target_include_directories(${name} SYSTEM PRIVATE ${RAPIDCHECK_INCLUDE_DIR})
    target_link_libraries(${name} PRIVATE ${RAPIDCHECK_LIBRARY})
  endif()
  target_compile_definitions(${name} PRIVATE FORELOAD_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  gtest_discover_tests(${name} TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT ${ARG_TIMEOUT})
endfunction()

# foreload_add_fuzzer(kv_event_fuzz SOURCES x.cc LIBRARIES ...): a libFuzzer binary when FORELOAD_FUZZ is on. Always:
# the same entry point in a test that replays the corpus folder fuzz/corpus/<name>, so that it cannot rot.
function(foreload_add_fuzzer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  if(FORELOAD_FUZZ)
    add_executable(${name} ${ARG_SOURCES})
    target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} foreload_options)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  elseif(FORELOAD_TESTS)
    add_executable(${name}_replay ${ARG_SOURCES} ${PROJECT_SOURCE_DIR}/tests/fuzz_replay_main.cc)
    target_link_libraries(${name}_replay PRIVATE ${ARG_LIBRARIES} foreload_options)
    add_test(NAME fuzz.${name} COMMAND ${name}_replay ${PROJECT_SOURCE_DIR}/tests/corpus/${name})
    set_tests_properties(fuzz.${name} PROPERTIES TIMEOUT 120)
  endif()
endfunction()

function(foreload_print_summary)
  message(STATUS "Foreload ${PROJECT_VERSION}: ${CMAKE_BUILD_TYPE}, "
                 "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
  message(STATUS "  io_uring   ${FORELOAD_HAVE_URING} (FORELOAD_URING=${FORELOAD_URING})")
  message(STATUS "  tests      ${FORELOAD_TESTS}, benchmarks ${FORELOAD_BENCH}, fuzzers ${FORELOAD_FUZZ}")
  message(STATUS "  sanitizers ${FORELOAD_SANITIZE}")
endfunction()
