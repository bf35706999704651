# cmake --install, and a Debian package: cpack --config build/release/CPackConfig.cmake -G DEB.
include(GNUInstallDirs)
set(shared ${CMAKE_INSTALL_DATAROOTDIR}/furlong)
install(TARGETS furlong RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY configs DESTINATION ${shared})
install(PROGRAMS scripts/prepare_data.sh scripts/fetch_data.sh scripts/fetch_models.sh scripts/antibody_sequences.py
  DESTINATION ${shared}/scripts)
install(FILES scripts/label_kjv.awk DESTINATION ${shared}/scripts)
# Pages keep their places relative to each other, and to the files that they link to.
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR}
  FILES_MATCHING PATTERN *.md PATTERN *.svg PATTERN *.png PATTERN *.json)
install(FILES CHANGELOG.md CONTRIBUTING.md LICENSE README.md SECURITY.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright)
foreach(linked benchmarks/README.md benchmarks/results/gpu/README.md benchmarks/results/two_processes_2026-11-22.json)
  get_filename_component(folder ${linked} DIRECTORY)
  install(FILES ${linked} DESTINATION ${CMAKE_INSTALL_DOCDIR}/${folder})
endforeach()
# DOCDIR and DATAROOTDIR may be absolute.
install(CODE "
  set(docs \"${CMAKE_INSTALL_DOCDIR}\")
  set(shared \"${shared}\")
  foreach(folder docs shared)
    cmake_path(ABSOLUTE_PATH \${folder} BASE_DIRECTORY \${CMAKE_INSTALL_PREFIX})
  endforeach()
  file(RELATIVE_PATH configs \${docs} \${shared}/configs)
  file(CREATE_LINK \${configs} \$ENV{DESTDIR}\${docs}/configs SYMBOLIC)
  list(APPEND CMAKE_INSTALL_MANIFEST_FILES \${docs}/configs)")

# The program describes its commands itself: a manual page, and completion for two shells.
set(described ${CMAKE_BINARY_DIR}/generated/described)
set(describe ${CMAKE_SOURCE_DIR}/scripts/describe_program.sh)
install(CODE "execute_process(COMMAND \"${describe}\" \"$<TARGET_FILE:furlong>\" \"${described}\"
  COMMAND_ERROR_IS_FATAL ANY)")
install(FILES ${described}/furlong.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${described}/furlong DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/bash-completion/completions)
install(FILES ${described}/_furlong DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/zsh/vendor-completions)

set(CPACK_PACKAGE_NAME furlong)
set(CPACK_PACKAGE_CONTACT "Furlong's developers <furlong@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trains transformers on long sequences with linear-time attention")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)  # dependencies from the libraries that the program links
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "xz-utils, ca-certificates")
include(CPack)
