# Reads the commit, which is stored in checkpoints and results, at build time, so that a rebuild after a commit has the
# new one.
add_custom_target(furlong_version_header ALL
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_SOURCE_DIR} -DOUTPUT=${CMAKE_BINARY_DIR}/generated/version_generated.h
    -DVERSION=${PROJECT_VERSION} -P ${CMAKE_SOURCE_DIR}/cmake/write_version.cmake
  BYPRODUCTS ${CMAKE_BINARY_DIR}/generated/version_generated.h VERBATIM)
add_dependencies(furlong_core furlong_version_header)
set_source_files_properties(${CMAKE_SOURCE_DIR}/framework/core/version.cpp PROPERTIES
  INCLUDE_DIRECTORIES ${CMAKE_BINARY_DIR}/generated)
