# Which glibc a binary runs with. A binary is linked with stand-ins for glibc's libraries that have the symbols and
# versions of the oldest one alone: what a newer one has is then undefined, and stops the link, unless the sources here
# define it.
set(FARGPU_GLIBC_FOLDER ${CMAKE_CURRENT_LIST_DIR})

function(fargpu_glibc_stand_ins version)
  set(folder ${CMAKE_BINARY_DIR}/glibc-${version})
  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY
    CMAKE_CONFIGURE_DEPENDS ${FARGPU_GLIBC_FOLDER}/stand_ins.py)
  if(${FARGPU_GLIBC_FOLDER}/stand_ins.py IS_NEWER_THAN ${folder}/libm.so)  # made anew, they have everything linked anew
    execute_process(COMMAND ${Python3_EXECUTABLE} -B ${FARGPU_GLIBC_FOLDER}/stand_ins.py ${CMAKE_C_COMPILER} ${version}
      ${folder}
                    COMMAND_ERROR_IS_FATAL ANY)
  endif()
endfunction()
if(NOT FARGPU_SANITIZE)  # its runtime is made for the machine that builds
  fargpu_glibc_stand_ins(${FARGPU_CLIENT_GLIBC})
  fargpu_glibc_stand_ins(${FARGPU_SERVER_GLIBC})
endif()

function(fargpu_glibc target version)
  target_sources(${target} PRIVATE ${FARGPU_GLIBC_FOLDER}/after_2_34.cpp)
  set_source_files_properties(${FARGPU_GLIBC_FOLDER}/after_2_34.cpp ${FARGPU_GLIBC_FOLDER}/after_2_28.cpp
    ${FARGPU_GLIBC_FOLDER}/start.cpp
                              PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  target_link_options(${target} PRIVATE -Wl,--build-id)
  if(FARGPU_SANITIZE)
    return()
  endif()
  set(folder ${CMAKE_BINARY_DIR}/glibc-${version})
  target_link_options(${target} PRIVATE -L${folder})
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${folder}/libc.so ${folder}/libc.so.6 ${folder}/libm.so)
  if(version VERSION_LESS 2.34)
    target_sources(${target} PRIVATE ${FARGPU_GLIBC_FOLDER}/after_2_28.cpp)
    get_target_property(type ${target} TYPE)
    if(type STREQUAL EXECUTABLE)
      target_sources(${target} PRIVATE ${FARGPU_GLIBC_FOLDER}/start.cpp)
      target_link_options(${target} PRIVATE -Wl,--wrap=__libc_start_main)
    endif()
    # Since 2.34 these are part of libc; before, threads and dlopen are found in them alone.
    target_link_options(${target} PRIVATE -Wl,--push-state,--no-as-needed ${folder}/libpthread.so.0 ${folder}/libdl.so.2
      -Wl,--pop-state)
  endif()
endfunction()
