# Generates feature_map_files.h: an #include of maps/NAME-inl.h for each X(NAME) in the list of feature maps.
set(furlong_map_list ${CMAKE_SOURCE_DIR}/framework/ops/attention/feature_maps/feature_map_list.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${furlong_map_list})
file(READ ${furlong_map_list} furlong_maps)
string(REGEX MATCHALL "X\\([a-z0-9_]+\\)" furlong_maps "${furlong_maps}")
list(TRANSFORM furlong_maps REPLACE "X\\((.*)\\)"
  "#include \"framework/ops/attention/feature_maps/maps/\\1-inl.h\"\n")
list(JOIN furlong_maps "" furlong_maps)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/feature_map_files.h CONTENT "${furlong_maps}")
set_source_files_properties(
  ${CMAKE_SOURCE_DIR}/framework/ops/attention/feature_maps/feature_map.cpp
  ${CMAKE_SOURCE_DIR}/framework/ops/attention/feature_maps/feature_map_functions_cpu.cpp
  PROPERTIES INCLUDE_DIRECTORIES ${CMAKE_BINARY_DIR}/generated)
