// Loads a SavedModel through TensorFlow's C API and runs calls, as a program without Python would.
//
//   capi_probe SAVED_MODEL CALLS ANSWERS OP_LIBRARY...
//
// The format of CALLS and ANSWERS is described in c_api.py. Exit status: 0 when the
// model was loaded and every call was made, whatever it answered; 1 otherwise, with a message.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"

static void fail(const char* what, const char* detail) {
  fprintf(stderr, "capi_probe: %s: %s\n", what, detail);
  exit(1);
}

static void* allocate(size_t size) {
  void* memory = malloc(size ? size : 1);
  if (memory == NULL) fail("malloc", "out of memory");
  return memory;
}

static void get(FILE* file, void* target, size_t size) {
  if (size && fread(target, 1, size, file) != size) fail("calls", "the file ends too early");
}

static void put(FILE* file, const void* source, size_t size) {
  if (size && fwrite(source, 1, size, file) != size) fail("answers", "cannot be written");
}

static uint32_t get_u32(FILE* file) {
  uint32_t value;
  get(file, &value, sizeof value);
  return value;
}

static void put_u32(FILE* file, uint32_t value) { put(file, &value, sizeof value); }

static void put_str(FILE* file, const char* data, size_t size) {
  put_u32(file, (uint32_t)size);
  put(file, data, size);
}

// A string with a NUL behind it; its length goes to *size unless size is NULL.
static char* get_str(FILE* file, uint32_t* size) {
  uint32_t length = get_u32(file);
  char* text = allocate((size_t)length + 1);
  get(file, text, length);
  text[length] = 0;
  if (size != NULL) *size = length;
  return text;
}

static TF_Tensor* get_tensor(FILE* file) {
  int32_t dtype;
  get(file, &dtype, sizeof dtype);
  uint32_t rank = get_u32(file);
  int64_t* dims = allocate(rank * sizeof *dims);
  get(file, dims, rank * sizeof *dims);
  uint64_t bytes;
  get(file, &bytes, sizeof bytes);
  int64_t count = 1;
  for (uint32_t i = 0; i < rank; ++i) count *= dims[i];
  size_t size = dtype == TF_STRING ? (size_t)count * sizeof(TF_TString) : (size_t)bytes;
  TF_Tensor* tensor = TF_AllocateTensor((TF_DataType)dtype, dims, (int)rank, size);
  if (tensor == NULL) fail("TF_AllocateTensor", "returned NULL");
  if (dtype == TF_STRING) {
    TF_TString* strings = TF_TensorData(tensor);
    for (int64_t i = 0; i < count; ++i) {
      uint32_t length;
      char* text = get_str(file, &length);
      TF_StringInit(&strings[i]);
      TF_StringCopy(&strings[i], text, length);
      free(text);
    }
  } else {
    get(file, TF_TensorData(tensor), (size_t)bytes);
  }
  free(dims);
  return tensor;
}

static void put_tensor(FILE* file, const TF_Tensor* tensor) {
  int32_t dtype = TF_TensorType(tensor);
  uint32_t rank = (uint32_t)TF_NumDims(tensor);
  put(file, &dtype, sizeof dtype);
  put_u32(file, rank);
  for (uint32_t i = 0; i < rank; ++i) {
    int64_t dim = TF_Dim(tensor, (int)i);
    put(file, &dim, sizeof dim);
  }
  uint64_t bytes = 0;
  int64_t count = TF_TensorElementCount(tensor);
  const TF_TString* strings = TF_TensorData(tensor);
  if (dtype == TF_STRING) {
    for (int64_t i = 0; i < count; ++i) bytes += 4 + TF_StringGetSize(&strings[i]);
  } else {
    bytes = TF_TensorByteSize(tensor);
  }
  put(file, &bytes, sizeof bytes);
  if (dtype == TF_STRING) {
    for (int64_t i = 0; i < count; ++i) {
      put_str(file, TF_StringGetDataPointer(&strings[i]), TF_StringGetSize(&strings[i]));
    }
  } else {
    put(file, strings, (size_t)bytes);
  }
}

// "name:1" is output 1 of the operation `name`.
static TF_Output find_output(TF_Graph* graph, char* tensor_name) {
  char* colon = strrchr(tensor_name, ':');
  int index = 0;
  if (colon != NULL) {
    *colon = 0;
    index = atoi(colon + 1);
  }
  TF_Output output = {TF_GraphOperationByName(graph, tensor_name), index};
  if (output.oper == NULL) fail("no such operation in the graph", tensor_name);
  return output;
}

static void run_call(FILE* calls, FILE* answers, TF_Graph* graph, TF_Session* session) {
  free(get_str(calls, NULL));  // The signature: its tensors are named below.
  uint32_t n = get_u32(calls);
  TF_Output* feeds = allocate(n * sizeof *feeds);
  TF_Tensor** inputs = allocate(n * sizeof *inputs);
  for (uint32_t i = 0; i < n; ++i) {
    free(get_str(calls, NULL));
    char* name = get_str(calls, NULL);
    feeds[i] = find_output(graph, name);
    inputs[i] = get_tensor(calls);
    free(name);
  }
  uint32_t m = get_u32(calls);
  TF_Output* fetches = allocate(m * sizeof *fetches);
  TF_Tensor** outputs = allocate(m * sizeof *outputs);
  char** aliases = allocate(m * sizeof *aliases);
  for (uint32_t i = 0; i < m; ++i) {
    aliases[i] = get_str(calls, NULL);
    char* name = get_str(calls, NULL);
    fetches[i] = find_output(graph, name);
    outputs[i] = NULL;
    free(name);
  }
  TF_Status* status = TF_NewStatus();
  TF_SessionRun(session, NULL, feeds, inputs, (int)n, fetches, outputs, (int)m, NULL, 0, NULL, status);
  int32_t code = TF_GetCode(status);
  put(answers, &code, sizeof code);
  put_str(answers, TF_Message(status), strlen(TF_Message(status)));
  put_u32(answers, code == TF_OK ? m : 0);
  for (uint32_t i = 0; i < m; ++i) {
    if (code == TF_OK) {
      put_str(answers, aliases[i], strlen(aliases[i]));
      put_tensor(answers, outputs[i]);
      TF_DeleteTensor(outputs[i]);
    }
    free(aliases[i]);
  }
  for (uint32_t i = 0; i < n; ++i) TF_DeleteTensor(inputs[i]);
  TF_DeleteStatus(status);
  free(feeds);
  free(inputs);
  free(fetches);
  free(outputs);
  free(aliases);
}

int main(int argc, char** argv) {
  if (argc < 4) fail("usage", "capi_probe SAVED_MODEL CALLS ANSWERS OP_LIBRARY...");
  TF_Status* status = TF_NewStatus();
  for (int i = 4; i < argc; ++i) {
    TF_LoadLibrary(argv[i], status);
    if (TF_GetCode(status) != TF_OK) fail(argv[i], TF_Message(status));
  }
  TF_Graph* graph = TF_NewGraph();
  TF_SessionOptions* options = TF_NewSessionOptions();
  const char* tags[] = {"serve"};
  TF_Session* session = TF_LoadSessionFromSavedModel(options, NULL, argv[1], tags, 1, graph, NULL, status);
  if (TF_GetCode(status) != TF_OK) fail("TF_LoadSessionFromSavedModel", TF_Message(status));

  FILE* calls = fopen(argv[2], "rb");
  FILE* answers = fopen(argv[3], "wb");
  if (calls == NULL || answers == NULL) fail("cannot open", calls == NULL ? argv[2] : argv[3]);
  char magic[4];
  get(calls, magic, 4);
  if (memcmp(magic, "ATF1", 4) != 0) fail(argv[2], "not a file of calls");
  uint32_t count = get_u32(calls);
  put(answers, "ATF2", 4);
  put_u32(answers, count);
  for (uint32_t i = 0; i < count; ++i) run_call(calls, answers, graph, session);
  fclose(calls);
  if (fclose(answers) != 0) fail(argv[3], "cannot be written");

  TF_CloseSession(session, status);
  TF_DeleteSession(session, status);
  TF_DeleteSessionOptions(options);
  TF_DeleteGraph(graph);
  printf("{\"tensorflow\": \"%s\"}\n", TF_Version());
  TF_DeleteStatus(status);
  return 0;
}
