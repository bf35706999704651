# Everything here is a Debian 12 package; scripts/setup.sh installs them and docs/architecture.md says why each is used.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
if(FURLONG_THREADS STREQUAL "openmp")
  find_package(OpenMP REQUIRED COMPONENTS CXX)
endif()
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(ZLIB REQUIRED)
find_package(LibLZMA REQUIRED)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(SENTENCEPIECE REQUIRED IMPORTED_TARGET sentencepiece)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)

# oneDNN's CMake package asks for OpenCL headers that a CPU user does not need; the library and its headers are enough.
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(dnnl_headers INTERFACE)
target_link_libraries(dnnl_headers INTERFACE ${DNNL_LIBRARY})

# CMake's own module would need a C compiler and link what HDF5 itself links (libcurl), whose headers nobody here needs.
pkg_check_modules(HDF5 REQUIRED IMPORTED_TARGET hdf5)
# HMAC-SHA-256 of the handshake between processes (communication/job_store/store_handshake.h).
pkg_check_modules(CRYPTO REQUIRED IMPORTED_TARGET libcrypto)
add_library(furlong_hdf5 INTERFACE)
target_link_libraries(furlong_hdf5 INTERFACE PkgConfig::HDF5)
# Collective operations between processes on CPUs; its package defines the target `gloo`.
find_package(Gloo REQUIRED CONFIG)

# Everything that a library of ours may include; what a room links is all the same to a static library.
add_library(furlong_libraries INTERFACE)
target_link_libraries(furlong_libraries INTERFACE fmt::fmt spdlog::spdlog PkgConfig::HWY PkgConfig::XXHASH dnnl_headers
  yaml-cpp nlohmann_json::nlohmann_json furlong_hdf5 ZLIB::ZLIB LibLZMA::LibLZMA PkgConfig::PCRE2 PkgConfig::SENTENCEPIECE
  PkgConfig::UTF8PROC PkgConfig::CRYPTO gloo CLI11::CLI11)
