# The CUDA engine and the simulator of its kernels. Included after project() and before any library. Chooses a toolkit,
# enables the CUDA language if there is one, and defines object libraries, because kernels register themselves before
# main() and an archive would drop them:
#   furlong_cuda_kernels  framework/**/*_cuda.cu, compiled by nvcc
#   furlong_cuda          framework/**/*_cuda.cpp and the parts of framework/cuda that need the toolkit's headers
#   furlong_simulated     the same kernels compiled by the host compiler, and the engine that runs them on the host
#   furlong_simulator     blocks, warps and threads on the host
# furlong_link_engines(program) links the existing ones. Nothing else depends on which exist.
set(FURLONG_CUDA "AUTO" CACHE STRING
  "Build the CUDA engine: AUTO (if a toolkit and a driver are found; for tests a toolkit is enough), ON or OFF")
set_property(CACHE FURLONG_CUDA PROPERTY STRINGS AUTO ON OFF)
set(furlong_cuda_minimum 12.4)
set(FURLONG_HAS_CUDA OFF)
set(FURLONG_HAS_SIMULATOR OFF)

# Sets FURLONG_NVCC and furlong_cuda_version, or sets furlong_cuda_missing to the reason why there is no usable
# compiler.
function(furlong_find_nvcc)
  set(places)
  foreach(variable CUDA_HOME CUDA_PATH CUDAToolkit_ROOT)
    if(DEFINED ENV{${variable}})
      list(APPEND places "$ENV{${variable}}/bin")
    endif()
  endforeach()
  file(GLOB installed LIST_DIRECTORIES true /usr/local/cuda-[0-9]*)
  list(SORT installed COMPARE NATURAL ORDER DESCENDING)
  list(TRANSFORM installed APPEND /bin)
  if(CMAKE_CUDA_COMPILER)
    set(FURLONG_NVCC "${CMAKE_CUDA_COMPILER}" CACHE FILEPATH "CUDA's compiler" FORCE)
  elseif(DEFINED ENV{CUDACXX})
    set(FURLONG_NVCC "$ENV{CUDACXX}" CACHE FILEPATH "CUDA's compiler" FORCE)
  endif()
  find_program(FURLONG_NVCC nvcc HINTS ${places} PATHS /usr/local/cuda/bin ${installed} /opt/cuda/bin
    DOC "CUDA's compiler")
  set(missing "")
  set(version "")
  if(NOT FURLONG_NVCC)
    set(missing "nvcc was not found (on PATH, in /usr/local/cuda*/bin, or by CUDACXX or CUDA_HOME)")
  else()
    execute_process(COMMAND ${FURLONG_NVCC} --version
      OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE status)
    if(status EQUAL 0 AND output MATCHES "release ([0-9]+\\.[0-9]+)")
      set(version ${CMAKE_MATCH_1})
      if(version VERSION_LESS furlong_cuda_minimum)
        set(missing "${FURLONG_NVCC} is CUDA ${version}, but ${furlong_cuda_minimum} or later is required")
      endif()
    else()
      set(missing "${FURLONG_NVCC} does not report its version")
    endif()
  endif()
  set(furlong_cuda_version "${version}" PARENT_SCOPE)
  set(furlong_cuda_missing "${missing}" PARENT_SCOPE)
endfunction()

# The driver of this machine's GPUs. A toolkit alone is typical of a login node or a container.
find_library(furlong_cuda_driver NAMES libcuda.so.1 PATHS /usr/lib/wsl/lib NO_CACHE)

# Sets CMAKE_CUDA_ARCHITECTURES before the language is enabled, unless the user has set it: to those of this machine's
# GPUs that kernels support; to one architecture for tests on a machine without a driver; otherwise to all supported
# ones. Sets furlong_cuda_missing if the kernels support none of this machine's GPUs.
function(furlong_choose_architectures)
  if(DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT CMAKE_CUDA_ARCHITECTURES STREQUAL "${FURLONG_CHOSEN_ARCHITECTURES}")
    if(CMAKE_CUDA_ARCHITECTURES MATCHES "^(native|all|all-major)$")  # the program compares numbers with its GPUs'
      set(given ${CMAKE_CUDA_ARCHITECTURES})
      unset(CMAKE_CUDA_ARCHITECTURES CACHE)
      message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES is ${given}; expected architectures from 80 on, \
such as 90; without the variable, they are those of this machine's GPUs")
    endif()
    return()
  endif()
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader OUTPUT_VARIABLE capabilities
    ERROR_QUIET RESULT_VARIABLE status OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(status EQUAL 0 AND capabilities MATCHES "^[0-9]+\\.[0-9]+")
    string(REPLACE "." "" capabilities "${capabilities}")
    string(REGEX REPLACE "[ \n]+" ";" architectures "${capabilities}")
    list(REMOVE_DUPLICATES architectures)
    list(FILTER architectures EXCLUDE REGEX "^[1-7][0-9]$")
    if(NOT architectures)
      set(furlong_cuda_missing "this machine's GPUs are older than compute capability 8.0; to build for other \
machines set CMAKE_CUDA_ARCHITECTURES" PARENT_SCOPE)
      return()
    endif()
    list(TRANSFORM architectures APPEND -real)
  elseif(FURLONG_CUDA STREQUAL "AUTO" AND NOT furlong_cuda_driver)
    set(architectures 90-real)
  else()
    set(architectures 80-real 90-real 90-virtual)
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${architectures} CACHE STRING "GPU architectures to compile for" FORCE)
  set(FURLONG_CHOSEN_ARCHITECTURES "${architectures}" CACHE INTERNAL "CMAKE_CUDA_ARCHITECTURES as chosen here")
endfunction()

if(NOT FURLONG_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "FURLONG_CUDA is '${FURLONG_CUDA}'; expected AUTO, ON or OFF")
endif()
if(FURLONG_CUDA STREQUAL "OFF")
  set(furlong_cuda_missing "FURLONG_CUDA is OFF")
elseif(FURLONG_CUDA STREQUAL "AUTO" AND FURLONG_SANITIZE)
  set(furlong_cuda_missing "sanitizers check only the host; FURLONG_CUDA=ON builds it anyway")
else()
  furlong_find_nvcc()
  if(NOT furlong_cuda_missing AND FURLONG_CUDA STREQUAL "AUTO" AND NOT furlong_cuda_driver AND NOT FURLONG_BUILD_TESTS)
    set(furlong_cuda_missing "this machine has no NVIDIA driver; to build for machines that have one: \
FURLONG_CUDA=ON ./scripts/build.sh release")
  endif()
  if(NOT furlong_cuda_missing)
    furlong_choose_architectures()
  endif()
  if(NOT furlong_cuda_missing)
    set(ENV{CUDACXX} ${FURLONG_NVCC})
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    if(NOT DEFINED CMAKE_CUDA_HOST_COMPILER AND NOT DEFINED ENV{CUDAHOSTCXX})
      set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
    endif()
    if(DEFINED CMAKE_CUDA_COMPILER AND NOT CMAKE_CUDA_COMPILER)
      unset(CMAKE_CUDA_COMPILER CACHE)  # an earlier failure may have been fixed
    endif()
    include(CheckLanguage)
    check_language(CUDA)  # in a separate project: enable_language would abort this one if the compiler does not work
    if(NOT CMAKE_CUDA_COMPILER)
      string(CONCAT furlong_cuda_missing "${FURLONG_NVCC} cannot compile a program "
        "(with ${CMAKE_CXX_COMPILER}; set CUDAHOSTCXX for another host compiler)")
    endif()
  endif()
  if(furlong_cuda_missing AND FURLONG_CUDA STREQUAL "ON")
    message(FATAL_ERROR "FURLONG_CUDA is ON, but ${furlong_cuda_missing}")
  endif()
endif()

if(NOT furlong_cuda_missing)
  enable_language(CUDA)
  if(CMAKE_VERSION VERSION_LESS 3.25.2)  # 3.25.1 does not know nvcc's -std=c++20
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  if(CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
  endif()
  find_package(CUDAToolkit REQUIRED)
  set(FURLONG_HAS_CUDA ON)
  message(STATUS "CUDA engine: built with CUDA ${furlong_cuda_version} (${FURLONG_NVCC}) "
    "for ${CMAKE_CUDA_ARCHITECTURES}")
else()
  message(STATUS "CUDA engine: not built, CPU only: ${furlong_cuda_missing}")
endif()

# The simulator needs only CUDA's headers for bfloat16 and vector types, not its compiler.
if(FURLONG_HAS_CUDA)
  set(furlong_cuda_headers ${CUDAToolkit_INCLUDE_DIRS})
else()
  find_path(FURLONG_CUDA_HEADERS cuda_bf16.h HINTS $ENV{CUDA_HOME}/include
    PATHS /usr/local/cuda/include /opt/cuda/include DOC "Folder of CUDA's headers")
  set(furlong_cuda_headers ${FURLONG_CUDA_HEADERS})
endif()
if(FURLONG_BUILD_TESTS AND furlong_cuda_headers)
  set(FURLONG_HAS_SIMULATOR ON)
  message(STATUS "CUDA kernels are tested on the simulator, with the headers in ${furlong_cuda_headers}")
elseif(FURLONG_BUILD_TESTS)
  message(STATUS "CUDA kernels are not tested on the simulator: CUDA's headers (cuda_bf16.h) were not found")
endif()

file(GLOB_RECURSE furlong_kernel_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/framework/*_cuda.cu)

if(FURLONG_HAS_CUDA)
  add_library(furlong_cuda_kernels OBJECT ${furlong_kernel_sources})
  target_include_directories(furlong_cuda_kernels PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)
  target_compile_definitions(furlong_cuda_kernels PRIVATE FURLONG_GPU=cuda_engine)
  # Uncompressed, so that scripts/cuda_gates.py can read the machine code in the objects without CUDA's binary tools.
  target_compile_options(furlong_cuda_kernels PRIVATE --expt-relaxed-constexpr --extended-lambda --no-compress
    -Xptxas=--warn-on-spills,--warn-on-local-memory-usage)
  if(FURLONG_WARNINGS_AS_ERRORS)
    target_compile_options(furlong_cuda_kernels PRIVATE -Werror=all-warnings)
  endif()

  file(GLOB_RECURSE furlong_cuda_host_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/framework/*_cuda.cpp
    ${CMAKE_SOURCE_DIR}/framework/cuda/engine/cuda_*.cpp ${CMAKE_SOURCE_DIR}/framework/cuda/engine/cublaslt*.cpp)
  list(REMOVE_DUPLICATES furlong_cuda_host_sources)
  add_library(furlong_cuda OBJECT ${furlong_cuda_host_sources})
  target_include_directories(furlong_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(furlong_cuda PUBLIC furlong_ops)
  string(REPLACE ";" " " furlong_cuda_architectures_text "${CMAKE_CUDA_ARCHITECTURES}")
  target_compile_definitions(furlong_cuda PRIVATE "FURLONG_CUDA_ARCHITECTURES=\"${furlong_cuda_architectures_text}\""
    "FURLONG_CUDA_TOOLKIT=\"${CUDAToolkit_VERSION}\"")
endif()

if(FURLONG_HAS_SIMULATOR)
  set(wrappers)
  foreach(source ${furlong_kernel_sources})
    file(RELATIVE_PATH source ${CMAKE_SOURCE_DIR} ${source})
    string(REGEX REPLACE "\\.cu$" ".cpp" wrapper ${source})
    string(REPLACE "/" "_" wrapper ${wrapper})
    set(wrapper ${CMAKE_BINARY_DIR}/generated/simulated/${wrapper})
    file(CONFIGURE OUTPUT ${wrapper} CONTENT "#include \"${source}\"\n")
    list(APPEND wrappers ${wrapper})
  endforeach()
  file(GLOB_RECURSE furlong_simulated_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/framework/*_simulated.cpp
    ${CMAKE_SOURCE_DIR}/framework/simulator/simulated_*.cpp)
  file(GLOB furlong_simulator_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/framework/simulator/simulator*.cpp)
  add_library(furlong_simulated OBJECT ${wrappers} ${furlong_simulated_sources})
  target_include_directories(furlong_simulated PRIVATE ${CMAKE_BINARY_DIR}/generated)
  add_library(furlong_simulator OBJECT ${furlong_simulator_sources})
  foreach(target furlong_simulated furlong_simulator)
    target_include_directories(${target} SYSTEM PRIVATE ${furlong_cuda_headers})
    target_compile_definitions(${target} PRIVATE FURLONG_GPU=simulated_engine)
    target_link_libraries(${target} PUBLIC furlong_ops)
  endforeach()
  # -O1: kernels spend their time in the simulator's context switches, and there are many to compile.
  furlong_optimization(level -O1)
  target_compile_options(furlong_simulated PRIVATE ${level})
  if(FURLONG_SANITIZE MATCHES "thread")
    # The simulator reports fiber switches to ThreadSanitizer; its own stores to shared state would be reported as
    # races. A source's options follow its target's and override -fsanitize=thread.
    set_source_files_properties(${furlong_simulator_sources} PROPERTIES COMPILE_OPTIONS -fno-sanitize=thread)
  endif()
  if(FURLONG_SANITIZE)
    # Arithmetic on the simulator's arrays: with sanitizers and little optimization it would take more than half of the
    # time. Replaces the option above.
    furlong_optimization(level -O3)
    set_source_files_properties(${CMAKE_SOURCE_DIR}/framework/simulator/simulator_mma.cpp PROPERTIES
      COMPILE_OPTIONS "${level};-fno-sanitize=all")
  endif()
endif()

# Links this build's engines to a program.
function(furlong_link_engines target)
  if(FURLONG_HAS_CUDA)
    target_link_libraries(${target} PRIVATE furlong_cuda furlong_cuda_kernels CUDA::cudart_static ${CMAKE_DL_LIBS})
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  endif()
  if(FURLONG_HAS_SIMULATOR)
    target_link_libraries(${target} PRIVATE furlong_simulated furlong_simulator)
    target_include_directories(${target} SYSTEM PRIVATE ${furlong_cuda_headers})
  endif()
  # Finds libraries next to the program, as in a bundle, in any folder.
  set_target_properties(${target} PROPERTIES BUILD_RPATH "$ORIGIN/../lib" INSTALL_RPATH "$ORIGIN/../lib")
endfunction()

# Tests of the compiled kernels: registers, shared and local memory, tensor-core instructions, occupancy.
function(furlong_add_cuda_gates)
  find_package(Python3 COMPONENTS Interpreter QUIET)
  if(NOT FURLONG_HAS_CUDA)
    return()
  elseif(NOT Python3_Interpreter_FOUND)
    message(STATUS "The compiled kernels are not compared with framework/cuda/kernels/kernel_table.json: "
      "Python 3 was not found")
    return()
  endif()
  set(toolkit ${CUDAToolkit_VERSION_MAJOR}.${CUDAToolkit_VERSION_MINOR})
  add_test(NAME CudaGates.kernel_table COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/cuda_gates.py
    --toolkit ${toolkit} $<TARGET_OBJECTS:furlong_cuda_kernels> COMMAND_EXPAND_LISTS)
  set_tests_properties(CudaGates.kernel_table PROPERTIES TIMEOUT 300)
  add_test(NAME CudaGates.self_test COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/cuda_gates.py --self-test)
  # The checks themselves are tested: they must reject kernels that spill or use local memory.
  add_library(furlong_planted_spill OBJECT ${CMAKE_SOURCE_DIR}/tests/framework/cuda/kernels/planted_spill.cu)
  target_compile_options(furlong_planted_spill PRIVATE --no-compress)
  add_test(NAME CudaGates.planted_spill_is_found COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/cuda_gates.py
    --toolkit none $<TARGET_OBJECTS:furlong_planted_spill>)
  set_tests_properties(CudaGates.planted_spill_is_found PROPERTIES
    PASS_REGULAR_EXPRESSION "FAULT sm_[0-9]+ planted_spill: keeps_an_array: .*FAULT sm_[0-9]+ planted_spill: spills: ")

  find_program(FURLONG_NVDISASM nvdisasm HINTS ${CUDAToolkit_BIN_DIR} DOC "NVIDIA's disassembler of machine code")
  if(NOT FURLONG_NVDISASM)
    message(STATUS "The cost of the compiled kernels is not compared with framework/cuda/kernels/cost_table.json: "
      "nvdisasm was not found")
    return()
  endif()
  set(sass_cost ${CMAKE_COMMAND} -E env NVDISASM=${FURLONG_NVDISASM} ${Python3_EXECUTABLE} -B
    ${CMAKE_SOURCE_DIR}/scripts/sass_cost.py)
  add_test(NAME SassCost.ReadsCompiledKernels COMMAND ${sass_cost} $<TARGET_OBJECTS:furlong_planted_spill>)
  set_tests_properties(SassCost.ReadsCompiledKernels PROPERTIES PASS_REGULAR_EXPRESSION
    "planted_spill: keeps_an_array: registers [0-9]+.*outside loops +[1-9][0-9]+.*  1  .*planted_spill: spills: reg")
  # scripts/test.sh --full builds this target: its kernels take a minute or two to compile.
  add_library(furlong_cost_kernels OBJECT EXCLUDE_FROM_ALL
    ${CMAKE_SOURCE_DIR}/tests/framework/cuda/kernels/cost_kernels.cu)
  target_include_directories(furlong_cost_kernels PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)
  target_compile_definitions(furlong_cost_kernels PRIVATE FURLONG_GPU=cuda_engine)
  target_compile_options(furlong_cost_kernels PRIVATE --expt-relaxed-constexpr --extended-lambda --no-compress
    -lineinfo)
  add_custom_target(sass_cost COMMAND ${sass_cost} --check ${CMAKE_SOURCE_DIR}/framework/cuda/kernels/cost_table.json
    --toolkit ${toolkit} $<TARGET_OBJECTS:furlong_cost_kernels> DEPENDS furlong_cost_kernels
    COMMAND_EXPAND_LISTS VERBATIM)
endfunction()
