// main() of a fuzz target without libFuzzer: runs it on each file in the given folders.
#include <exception>
#include <fstream>
#include <iostream>

#include "tests/fuzz/target.h"

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  std::vector<fs::path> files;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : fs::directory_iterator(argv[i])) files.push_back(entry.path());
  }
  if (files.empty()) {
    std::cerr << "no inputs\n";
    return 1;
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    std::ifstream stream(file, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
    // Memory of the exact size, so that AddressSanitizer detects reads past the end.
    const std::vector<std::uint8_t> input(bytes.begin(), bytes.end());
    std::cout << file.filename().string() << std::endl;
    try {
      LLVMFuzzerTestOneInput(input.data(), input.size());
    } catch (const std::exception& error) {
      std::cerr << "finding: " << error.what() << '\n';
      return 1;
    }
  }
  std::cout << files.size() << " inputs\n";
}
