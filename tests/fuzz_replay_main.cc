// Feeds every file of the folders named in argv to a fuzzer's entry point, so that each fuzzer's corpus is also an
// ordinary test on every build. Prints how many inputs ran; fails when a folder is missing, unreadable or empty.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

// Inputs run in name order: a failure names the same file each time.
std::vector<std::filesystem::path> FilesOf(const char* folder, std::error_code& error) {
  std::vector<std::filesystem::path> files;
  std::filesystem::recursive_directory_iterator it(folder, error);
  while (!error && it != std::filesystem::recursive_directory_iterator()) {
    if (it->is_regular_file()) files.push_back(it->path());
    it.increment(error);
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t inputs = 0;
  for (int i = 1; i < argc; ++i) {
    std::error_code error;
    const auto files = FilesOf(argv[i], error);
    if (error || files.empty()) {
      std::fprintf(stderr, "no input in %s: %s\n", argv[i], error ? error.message().c_str() : "the folder is empty");
      return 1;
    }
    for (const auto& file : files) {
      std::ifstream stream(file, std::ios::binary);
      const std::vector<char> bytes{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
      if (!stream.is_open() || stream.bad()) {
        std::fprintf(stderr, "cannot read %s\n", file.c_str());
        return 1;
      }
      std::printf("%s (%zu bytes)\n", file.c_str(), bytes.size());
      std::fflush(stdout);  // the last line names the culprit when the input kills the process
      // A copy of the exact size, so that AddressSanitizer sees a read past the end.
      const std::vector<std::uint8_t> input(bytes.begin(), bytes.end());
      LLVMFuzzerTestOneInput(input.data(), input.size());
      ++inputs;
    }
  }
  std::printf("%zu inputs replayed\n", inputs);
  return inputs > 0 ? 0 : 1;
}
