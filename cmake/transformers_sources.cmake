# The Python files of exported models (conversion/transformers/), as text in the program.
file(GLOB furlong_python_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/conversion/transformers/*.py)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${furlong_python_files})
set(furlong_python_sources "")
foreach(file ${furlong_python_files})
  file(READ ${file} text)
  get_filename_component(name ${file} NAME)
  string(APPEND furlong_python_sources "    {\"${name}\", R\"PYTHON(${text})PYTHON\"},\n")
endforeach()
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/transformers_sources.inc CONTENT "@furlong_python_sources@" @ONLY)
set_source_files_properties(${CMAKE_SOURCE_DIR}/conversion/transformers_model.cpp
  PROPERTIES INCLUDE_DIRECTORIES ${CMAKE_BINARY_DIR}/generated)
