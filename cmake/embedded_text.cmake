# Files that are part of the program. furlong_embed_text(SOURCE INCLUDED FILES...) writes generated/INCLUDED, a list of
# {"name", "text"} pairs in C++ that SOURCE includes.
function(furlong_embed_text source included)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ARGN})
  set(pairs "")
  foreach(file ${ARGN})
    file(READ ${file} text)
    get_filename_component(name ${file} NAME)
    string(APPEND pairs "    {\"${name}\", R\"FURLONG_TEXT(${text})FURLONG_TEXT\"},\n")
  endforeach()
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/${included} CONTENT "@pairs@" @ONLY)
  set_source_files_properties(${CMAKE_SOURCE_DIR}/${source}
    PROPERTIES INCLUDE_DIRECTORIES ${CMAKE_BINARY_DIR}/generated)
endfunction()

file(GLOB files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/conversion/transformers/*.py)
furlong_embed_text(conversion/transformers_model.cpp transformers_sources.inc ${files})
file(GLOB files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/evaluation/report/page/page.*)
furlong_embed_text(evaluation/report/report.cpp report_page.inc ${files})
