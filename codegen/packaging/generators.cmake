# Read by CPack for each kind of package.
if(CPACK_GENERATOR MATCHES "DEB|RPM")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
else()
  # Unpacked below any prefix. All archives have one folder at their top, so that those that belong together come
  # together.
  set(CPACK_PACKAGING_INSTALL_PREFIX /)
  set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
endif()
