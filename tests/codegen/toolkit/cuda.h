// A toolkit in small, with one of everything that the generator must tell apart.
#pragma once
#include <stddef.h>
#define CUDA_VERSION 13000
#define CUDAAPI
#ifdef __cplusplus
extern "C" {
#endif

typedef unsigned long long CUdeviceptr_v2;
typedef CUdeviceptr_v2 CUdeviceptr;
typedef int CUdevice;
typedef struct CUstream_st* CUstream;
typedef struct CUbox_st* CUbox;
typedef enum cudaError_enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1, CUDA_ERROR_NOT_SUPPORTED = 801 } CUresult;
typedef enum CUcolour_enum { CU_COLOUR_RED = 0, CU_COLOUR_BLUE = 1 } CUcolour;
typedef enum CUdevice_attribute_enum {
  CU_DEVICE_ATTRIBUTE_WARP_SIZE = 10,
  CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY = 83,
  CU_DEVICE_ATTRIBUTE_MAX
} CUdevice_attribute;

typedef struct CUboxShape_st {
  size_t edges[3];
  CUcolour colour;
  struct {
    unsigned short lid;
    void* maker;
  } parts;
} CUboxShape;

typedef enum CUlaunchAttributeID_enum { CU_LAUNCH_ATTRIBUTE_IGNORE = 0, CU_LAUNCH_ATTRIBUTE_PRIORITY = 8 } CUlaunchAttributeID;
typedef union CUlaunchAttributeValue_union {
  char pad[64];
  int priority;
} CUlaunchAttributeValue;

CUresult CUDAAPI cuInit(unsigned int Flags);
CUresult CUDAAPI cuStreamCreate(CUstream* phStream, unsigned int Flags);
CUresult CUDAAPI cuStreamDestroy(CUstream hStream);
CUresult CUDAAPI cuStreamSetAttribute(CUstream hStream, CUlaunchAttributeID attr, const CUlaunchAttributeValue* value);
CUresult CUDAAPI cuStreamSetAttribute_ptsz(CUstream hStream, CUlaunchAttributeID attr, const CUlaunchAttributeValue* value);

CUresult CUDAAPI cuBoxCreate(CUbox* box, const CUboxShape* shape, const char* name, CUdevice dev);
CUresult CUDAAPI cuBoxDestroy(CUbox box);
CUresult CUDAAPI cuBoxGetColour(CUcolour* colour, CUbox box);
CUresult CUDAAPI cuBoxGetSize(unsigned int* bytes, CUbox box);
CUresult CUDAAPI cuBoxGetSize_v2(size_t* bytes, CUbox box);
CUresult CUDAAPI cuBoxSetWeights(CUbox box, const float* weights, unsigned int count);
CUresult CUDAAPI cuBoxList(CUbox* boxes, size_t* count);
CUresult CUDAAPI cuBoxOpen(CUbox box, void** contents);
CUresult CUDAAPI cuBoxFill(CUdeviceptr address, unsigned char value, size_t bytes);
CUresult CUDAAPI cuBoxFill_ptds(CUdeviceptr address, unsigned char value, size_t bytes);
CUresult CUDAAPI cuBoxFillAsync(CUdeviceptr address, unsigned char value, size_t bytes, CUstream hStream);
CUresult CUDAAPI cuBoxFillAsync_ptsz(CUdeviceptr address, unsigned char value, size_t bytes, CUstream hStream);

typedef unsigned long long CUtexObject;
typedef enum CUholds_enum { CU_HOLDS_BOX = 0, CU_HOLDS_MEMORY = 1 } CUholds;
typedef struct CUcontents_st {
  union {
    struct {
      CUbox box;
    } inner;
    struct {
      CUdeviceptr address;
      size_t count;
      float borders[2];
    } memory;
    void* spare[8];
  } held;
  CUholds holds;
} CUcontents;
CUresult CUDAAPI cuTexObjectCreate(CUtexObject* object, const CUcontents* contents, const CUboxShape* shape);
CUresult CUDAAPI cuTexObjectDestroy(CUtexObject object);
CUresult CUDAAPI cuTexObjectGetContents(CUcontents* contents, size_t* room, CUtexObject object);
CUresult CUDAAPI cuTexObjectGetBox(CUbox* box, CUtexObject object);

typedef unsigned int CUdeviceptr_v1;
typedef struct CUplan_v1_st {
  unsigned int rows;
  CUcolour colour;
} CUplan_v1;
typedef struct CUplan_st {
  size_t rows;
  CUcolour colour;
} CUplan;
CUresult CUDAAPI cuPlanPlace(CUdeviceptr_v1* address, unsigned int* bytes, const CUplan_v1* plan, CUbox box);
CUresult CUDAAPI cuPlanPlace_v2(CUdeviceptr* address, size_t* bytes, const CUplan* plan, CUbox box);
CUresult CUDAAPI cuPlanRemove(CUdeviceptr_v1 address, unsigned int bytes);
CUresult CUDAAPI cuPlanRemove_v2(CUdeviceptr address, size_t bytes);
CUresult CUDAAPI cuPlanGet(CUplan_v1* plan, CUdeviceptr_v1* address, CUbox box);
CUresult CUDAAPI cuPlanGet_v2(CUplan* plan, CUdeviceptr* address, CUbox box);

CUresult CUDAAPI cuBoxPaint(CUbox box, CUcolour colour, CUstream hStream);
CUresult CUDAAPI cuBoxPaint_ptsz(CUbox box, CUcolour colour, CUstream hStream);
CUresult CUDAAPI cuBoxPaintRed(CUbox box);
CUresult CUDAAPI cuBoxPaintRed_ptds(CUbox box);
CUresult CUDAAPI cuBoxPaintBlue(CUbox box);
CUresult CUDAAPI cuBoxPaintBlue_ptds(CUbox box);
CUresult CUDAAPI cuBoxUnlock(CUbox box, void** contents, const char* key);
CUresult CUDAAPI cuPlanCancel(CUdeviceptr address);

#ifdef __cplusplus
}
#endif
