# All dependencies are packages of Debian 12 and 13. scripts/setup.sh installs them; their purposes are listed in
# docs/internals/architecture.md.

# A library of an active conda environment, next to this system's, fails to link or crashes at run time. Programs such
# as CMake and ccache may come from there.
function(furlong_reject_conda)
  if("$ENV{CONDA_PREFIX}" STREQUAL "")
    return()
  endif()
  get_cmake_property(names CACHE_VARIABLES)
  list(FILTER names INCLUDE REGEX "^(.*_DIR|.*_LIBRARY(_RELEASE)?|.*_INCLUDE_DIR|pkgcfg_lib_.*|PKG_CONFIG_EXECUTABLE)$")
  list(FILTER names EXCLUDE REGEX "^(CMAKE_|_?Python3_|furlong_|FETCHCONTENT_)")
  foreach(name ${names})
    string(FIND "$CACHE{${name}}" "$ENV{CONDA_PREFIX}/" place)
    if(NOT place EQUAL -1)
      message(FATAL_ERROR "${name} is $CACHE{${name}}, in the active conda environment. Run `conda deactivate`, "
        "delete ${CMAKE_BINARY_DIR} and build again.")
    endif()
  endforeach()
endfunction()

find_package(PkgConfig REQUIRED)
furlong_reject_conda()  # conda's pkg-config does not find this system's libraries
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
find_package(PNG REQUIRED)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)

# Debian 13's sentencepiece.pc requires protobuf-lite, which its package does not depend on.
find_library(SENTENCEPIECE_LIBRARY sentencepiece REQUIRED)
find_library(SENTENCEPIECE_TRAIN_LIBRARY sentencepiece_train REQUIRED)
# oneDNN's CMake package requires OpenCL headers, which CPU users do not need; library and headers are enough.
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(dnnl_headers INTERFACE)
target_link_libraries(dnnl_headers INTERFACE ${DNNL_LIBRARY})

# CMake's module requires a C compiler and links HDF5's own dependencies (libcurl), whose headers are not needed here.
pkg_check_modules(HDF5 REQUIRED IMPORTED_TARGET hdf5)
# HMAC-SHA-256 of the handshake between ranks (communication/job_store/store_handshake.h).
pkg_check_modules(CRYPTO REQUIRED IMPORTED_TARGET libcrypto)
add_library(furlong_hdf5 INTERFACE)
target_link_libraries(furlong_hdf5 INTERFACE PkgConfig::HDF5)
target_compile_definitions(furlong_hdf5 INTERFACE H5_USE_110_API)  # HDF5 1.10 is that of Debian 12
# Collective operations between ranks on CPUs; the package defines the target `gloo`.
find_package(Gloo REQUIRED CONFIG)
# communication/gloo derives from its classes, whose headers include one that Debian's package omits.
set(furlong_gloo_options -idirafter${CMAKE_SOURCE_DIR}/communication/gloo/missing)
try_run(FURLONG_GLOO_LAYOUT FURLONG_GLOO_COMPILES SOURCES ${CMAKE_SOURCE_DIR}/cmake/gloo_layout.cpp
  COMPILE_DEFINITIONS "\"${furlong_gloo_options}\"" LINK_LIBRARIES gloo Threads::Threads
  COMPILE_OUTPUT_VARIABLE furlong_gloo_output)
if(NOT FURLONG_GLOO_LAYOUT EQUAL 0)
  unset(FURLONG_GLOO_LAYOUT CACHE)  # checked again by the next configuration
  unset(FURLONG_GLOO_COMPILES CACHE)
  message(FATAL_ERROR "The classes of libgloo differ from its headers with communication/gloo/missing \
(cmake/gloo_layout.cpp); use the package of Debian 12 or 13. ${furlong_gloo_output}")
endif()
furlong_reject_conda()

# All dependencies that a room may include; a static library is not affected by what it links.
add_library(furlong_libraries INTERFACE)
target_link_libraries(furlong_libraries INTERFACE fmt::fmt spdlog::spdlog PkgConfig::HWY PkgConfig::XXHASH dnnl_headers
  yaml-cpp nlohmann_json::nlohmann_json furlong_hdf5 ZLIB::ZLIB LibLZMA::LibLZMA PkgConfig::ZSTD PNG::PNG
  PkgConfig::PCRE2 ${SENTENCEPIECE_LIBRARY} ${SENTENCEPIECE_TRAIN_LIBRARY} PkgConfig::UTF8PROC
  PkgConfig::CRYPTO gloo CLI11::CLI11)
