#pragma once
// Shared libraries that are loaded at run time, so that the program also starts on a machine without them. Their
// functions are stored in tables of typed pointers: the compiler rejects a wrong argument, and a missing function is
// detected when the library is loaded.
#include <string>
#include <utility>
#include <vector>

namespace furlong {

/// One function of a library that is loaded at run time. `Function` is its type, as decltype(cublasLtCreate) gives it.
template <class Function>
struct LibraryFunction {
  const char* name;
  Function* pointer = nullptr;

  explicit operator bool() const { return pointer != nullptr; }
  template <class... Arguments>
  auto operator()(Arguments&&... arguments) const {
    return pointer(std::forward<Arguments>(arguments)...);
  }
};

/// Describes a library to load.
struct LibraryWanted {
  std::string title;                     ///< "cuBLASLt", for messages
  std::vector<std::string> file_names;   ///< in order of preference: libcublasLt.so.13, libcublasLt.so.12
  std::vector<std::string> pip_folders;  ///< below Python's site-packages: nvidia/cu13/lib
  std::vector<std::string> functions;    ///< the library must have all of them
};

/// A loaded library, or the reason why none was loaded. Never unloaded.
struct Library {
  void* handle = nullptr;
  std::string path;  ///< the loaded file, as the loader names it
  /// One line: the places that were searched, and the errors of files that were found. Empty if `handle` is set.
  std::string problem;
};

/// Loads a library. Searches these places in order, and in each place the file names in order:
/// $FURLONG_CUDA_LIBDIR, ../lib next to the program, the loader's own path, the toolkit ($CUDA_HOME, $CUDA_PATH,
/// /usr/local/cuda*), packages of pip and conda ($VIRTUAL_ENV, $CONDA_PREFIX, ~/.local, /usr/lib, /usr/local/lib).
/// Skips a file that does not load or lacks one of the functions, and names it in `problem`.
Library load_library(const LibraryWanted& wanted);

/// Returns the address of a function in a library loaded by load_library(); null if the library has no such function.
void* library_symbol(const Library& library, const char* name);

/// Fills the entries of a table from the first library that has all of them.
template <class... Functions>
Library load_table(LibraryWanted wanted, LibraryFunction<Functions>&... entries) {
  wanted.functions = {entries.name...};
  Library library = load_library(wanted);
  if (library.handle != nullptr)
    ((entries.pointer = reinterpret_cast<Functions*>(library_symbol(library, entries.name))), ...);
  return library;
}

}  // namespace furlong
