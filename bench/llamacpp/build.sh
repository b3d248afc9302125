#!/bin/sh
# Builds llama-server from the llama.cpp inside llama-cpp-python's own source distribution: same commit, same kernels, same flags.
#   bench/llamacpp/build.sh FOLDER      some ten minutes; prints the paths of llama-server and of the example server
set -eu
folder=$1
version=$(python -c "import importlib.metadata; print(importlib.metadata.version('llama-cpp-python'))")
mkdir -p "$folder"
python -m pip download --quiet --no-deps --no-binary llama-cpp-python "llama-cpp-python==$version" -d "$folder"
tar -xf "$folder"/llama_cpp_python-"$version".tar.gz -C "$folder"
source="$folder/llama_cpp_python-$version"
cmake -G Ninja -S "$source/vendor/llama.cpp" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
    -DLLAMA_BUILD_UI=OFF -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF >"$folder/build.log"
ninja -C "$folder/build" llama-server >>"$folder/build.log"
echo "$folder/build/bin/llama-server"
echo "$source/examples/server/server.py"
