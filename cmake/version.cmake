# The commit goes into checkpoints and results; it is read at build time so that a rebuild after a commit says the new
# one.
add_custom_target(furlong_version_header ALL
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_SOURCE_DIR} -DOUTPUT=${CMAKE_BINARY_DIR}/generated/version_generated.h
    -DVERSION=${PROJECT_VERSION} -P ${CMAKE_SOURCE_DIR}/cmake/write_version.cmake
  BYPRODUCTS ${CMAKE_BINARY_DIR}/generated/version_generated.h VERBATIM)
add_dependencies(furlong_framework furlong_version_header)
target_include_directories(furlong_framework PRIVATE ${CMAKE_BINARY_DIR}/generated)
