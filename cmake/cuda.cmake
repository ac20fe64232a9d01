# The GPU kernels: nvcc makes a fatbin, and a C file takes it in. The driver itself is opened at run time, so nothing is
# linked. Sets GANTRY_HAVE_CUDA (also a compile definition) and GANTRY_CUDA_INCLUDE, where cuda.h is, for a test.
#
# nvcc is only believed after it has compiled something: it needs a C++ compiler that it accepts, which CMake does not
# look for.

find_program(GANTRY_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
mark_as_advanced(GANTRY_NVCC)
set(GANTRY_HAVE_CUDA 0)

# -gencode for each architecture, and PTX of the last one for GPUs that come later.
set(GANTRY_NVCC_FLAGS -std=c++17 -O3 -Xfatbin -compress-all) # compressed, a quarter of the size; the driver unpacks it
foreach(arch ${GANTRY_CUDA_ARCHS})
  list(APPEND GANTRY_NVCC_FLAGS -gencode arch=compute_${arch},code=sm_${arch})
endforeach()
list(GET GANTRY_CUDA_ARCHS -1 arch)
list(APPEND GANTRY_NVCC_FLAGS -gencode arch=compute_${arch},code=compute_${arch})

function(gantry_try_nvcc)
  set(folder ${CMAKE_BINARY_DIR}/nvcc-try)
  file(WRITE ${folder}/try.cu "extern \"C\" __global__ void k(int *p) { *p = 1; }\n")
  execute_process(COMMAND ${GANTRY_NVCC} ${GANTRY_NVCC_FLAGS} -fatbin -o ${folder}/try.fatbin ${folder}/try.cu
    RESULT_VARIABLE status OUTPUT_VARIABLE said ERROR_VARIABLE said)
  string(REGEX MATCH "[^\n]*(rror|ot found|nsupported)[^\n]*" line "${said}")
  if(status EQUAL 0)
    set(line "")
  elseif(NOT line)
    set(line "exit status ${status}")
  endif()
  set(GANTRY_NVCC_TRIED "${GANTRY_NVCC} ${GANTRY_NVCC_FLAGS}" CACHE INTERNAL "what GANTRY_NVCC_WHY is about")
  set(GANTRY_NVCC_WHY "${line}" CACHE INTERNAL "why nvcc does not work; empty: it works")
endfunction()

if(NOT GANTRY_CUDA)
  message(STATUS "CUDA: switched off (GANTRY_CUDA), GPUs will have no kernels")
elseif(NOT GANTRY_NVCC)
  message(STATUS "CUDA: nvcc not found, GPUs will have no kernels (their memory can be used)")
else()
  if(GANTRY_NVCC_WHY OR NOT "${GANTRY_NVCC_TRIED}" STREQUAL "${GANTRY_NVCC} ${GANTRY_NVCC_FLAGS}")
    gantry_try_nvcc()
  endif()
  if(GANTRY_NVCC_WHY)
    message(STATUS "CUDA: ${GANTRY_NVCC} does not work, GPUs will have no kernels: ${GANTRY_NVCC_WHY}")
  else()
    list(JOIN GANTRY_CUDA_ARCHS ", " archs)
    message(STATUS "CUDA: ${GANTRY_NVCC}, kernels for compute capability ${archs} and later")
    set(GANTRY_HAVE_CUDA 1)
  endif()
endif()
target_compile_definitions(gantry_flags INTERFACE GANTRY_HAVE_CUDA=${GANTRY_HAVE_CUDA})

find_path(GANTRY_CUDA_INCLUDE cuda.h HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES include)
mark_as_advanced(GANTRY_CUDA_INCLUDE)

# gantry_embed_kernels(NAME FILE.c): nvcc makes a fatbin of FILE.c, which is then compiled as C with the path of it in
# GANTRY_FATBIN. Both are rebuilt when anything that the kernels include has changed.
function(gantry_embed_kernels name file)
  if(NOT GANTRY_HAVE_CUDA)
    return()
  endif()
  set(fatbin ${CMAKE_BINARY_DIR}/${name}.fatbin)
  add_custom_command(OUTPUT ${fatbin}
    COMMAND ${GANTRY_NVCC} ${GANTRY_NVCC_FLAGS} -fatbin --threads 2 -Xcompiler -Wall
      -I${CMAKE_SOURCE_DIR}/include -I${CMAKE_SOURCE_DIR}/src -I${CMAKE_SOURCE_DIR}/tools -MD -MF ${fatbin}.d -MT ${fatbin}
      -o ${fatbin} -x cu ${CMAKE_SOURCE_DIR}/${file}
    DEPENDS ${CMAKE_SOURCE_DIR}/${file} DEPFILE ${fatbin}.d
    COMMENT "Compiling the ${name} for GPUs" VERBATIM)
  set_source_files_properties(${file} PROPERTIES OBJECT_DEPENDS ${fatbin}
    COMPILE_DEFINITIONS "GANTRY_FATBIN=\"${fatbin}\"")
endfunction()
