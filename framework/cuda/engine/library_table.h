#pragma once
// Shared libraries that are looked for when the program runs, so that the same program starts on a machine without
// them. Their functions are held in tables of typed pointers: a wrong argument is a compiler's error, a missing
// function is found when the library is loaded.
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

/// What to look for.
struct LibraryWanted {
  std::string title;                     ///< "cuBLASLt", for messages
  std::vector<std::string> file_names;   ///< the best first: libcublasLt.so.13, libcublasLt.so.12
  std::vector<std::string> pip_folders;  ///< below Python's site-packages: nvidia/cu13/lib
  std::vector<std::string> functions;    ///< all of them must be there
};

/// A loaded library, or why there is none. Never unloaded.
struct Library {
  void* handle = nullptr;
  std::string path;     ///< the file that was loaded, as the loader names it
  std::string problem;  ///< one line: what was tried, and what was wrong with files that were found; empty when there
                        ///< is a handle
};

/// Looks in $FURLONG_CUDA_LIBDIR, ../lib beside the program, the loader's own path, the toolkit ($CUDA_HOME,
/// $CUDA_PATH, /usr/local/cuda*), and the packages of pip and conda ($VIRTUAL_ENV, $CONDA_PREFIX, ~/.local, /usr/lib,
/// /usr/local/lib), in this order; in each place for the file names in theirs. A file that does not load, or lacks one
/// of the functions, is passed over and named in `problem`.
Library load_library(const LibraryWanted& wanted);

/// Address of a function in a library that load_library() accepted; null where it has none of that name.
void* library_symbol(const Library& library, const char* name);

/// Fills the entries of a table from the first library that has them all.
template <class... Functions>
Library load_table(LibraryWanted wanted, LibraryFunction<Functions>&... entries) {
  wanted.functions = {entries.name...};
  Library library = load_library(wanted);
  if (library.handle != nullptr)
    ((entries.pointer = reinterpret_cast<Functions*>(library_symbol(library, entries.name))), ...);
  return library;
}

/// Fills those entries that the library has: functions that came with a later version, and can be done without.
template <class... Functions>
void load_optional(const Library& library, LibraryFunction<Functions>&... entries) {
  if (library.handle != nullptr)
    ((entries.pointer = reinterpret_cast<Functions*>(library_symbol(library, entries.name))), ...);
}

}  // namespace furlong
