#pragma once
#include <cuda.h>

typedef CUresult(CUDAAPI* PFN_cuInit_v2000)(unsigned int Flags);
typedef CUresult(CUDAAPI* PFN_cuStreamCreate_v2000)(CUstream* phStream, unsigned int Flags);
typedef CUresult(CUDAAPI* PFN_cuStreamDestroy_v4000)(CUstream hStream);
typedef CUresult(CUDAAPI* PFN_cuStreamSetAttribute_v11000)(CUstream hStream, CUlaunchAttributeID attr, const CUlaunchAttributeValue* value);
typedef CUresult(CUDAAPI* PFN_cuStreamSetAttribute_v11000_ptsz)(CUstream hStream, CUlaunchAttributeID attr,
                                                                const CUlaunchAttributeValue* value);
typedef CUresult(CUDAAPI* PFN_cuBoxCreate_v12000)(CUbox* box, const CUboxShape* shape, const char* name, CUdevice dev);
typedef CUresult(CUDAAPI* PFN_cuBoxDestroy_v12000)(CUbox box);
typedef CUresult(CUDAAPI* PFN_cuBoxGetColour_v12000)(CUcolour* colour, CUbox box);
typedef CUresult(CUDAAPI* PFN_cuBoxGetSize_v12000)(unsigned int* bytes, CUbox box);
typedef CUresult(CUDAAPI* PFN_cuBoxGetSize_v12040)(size_t* bytes, CUbox box);
typedef CUresult(CUDAAPI* PFN_cuBoxSetWeights_v12000)(CUbox box, const float* weights, unsigned int count);
typedef CUresult(CUDAAPI* PFN_cuBoxList_v12000)(CUbox* boxes, size_t* count);
typedef CUresult(CUDAAPI* PFN_cuBoxOpen_v12000)(CUbox box, void** contents);
typedef CUresult(CUDAAPI* PFN_cuBoxFill_v12000)(CUdeviceptr address, unsigned char value, size_t bytes);
typedef CUresult(CUDAAPI* PFN_cuBoxFill_v12000_ptds)(CUdeviceptr address, unsigned char value, size_t bytes);
typedef CUresult(CUDAAPI* PFN_cuBoxFillAsync_v12000)(CUdeviceptr address, unsigned char value, size_t bytes, CUstream hStream);
typedef CUresult(CUDAAPI* PFN_cuBoxFillAsync_v12000_ptsz)(CUdeviceptr address, unsigned char value, size_t bytes, CUstream hStream);
typedef CUresult(CUDAAPI* PFN_cuTexObjectCreate_v12000)(CUtexObject* object, const CUcontents* contents, const CUboxShape* shape);
typedef CUresult(CUDAAPI* PFN_cuTexObjectDestroy_v12000)(CUtexObject object);
typedef CUresult(CUDAAPI* PFN_cuTexObjectGetContents_v12000)(CUcontents* contents, size_t* room, CUtexObject object);
typedef CUresult(CUDAAPI* PFN_cuTexObjectGetBox_v12000)(CUbox* box, CUtexObject object);
typedef CUresult(CUDAAPI* PFN_cuPlanPlace_v2000)(CUdeviceptr_v1* address, unsigned int* bytes, const CUplan_v1* plan, CUbox box);
typedef CUresult(CUDAAPI* PFN_cuPlanPlace_v3020)(CUdeviceptr* address, size_t* bytes, const CUplan* plan, CUbox box);
typedef CUresult(CUDAAPI* PFN_cuPlanRemove_v2000)(CUdeviceptr_v1 address, unsigned int bytes);
typedef CUresult(CUDAAPI* PFN_cuPlanRemove_v3020)(CUdeviceptr address, size_t bytes);
typedef CUresult(CUDAAPI* PFN_cuPlanGet_v2000)(CUplan_v1* plan, CUdeviceptr_v1* address, CUbox box);
typedef CUresult(CUDAAPI* PFN_cuPlanGet_v3020)(CUplan* plan, CUdeviceptr* address, CUbox box);
typedef CUresult(CUDAAPI* PFN_cuBoxPaint_v13000)(CUbox box, CUcolour colour, CUstream hStream);
typedef CUresult(CUDAAPI* PFN_cuBoxPaint_v13000_ptsz)(CUbox box, CUcolour colour, CUstream hStream);
typedef CUresult(CUDAAPI* PFN_cuBoxPaintRed_v13000)(CUbox box);
typedef CUresult(CUDAAPI* PFN_cuBoxPaintRed_v13000_ptds)(CUbox box);
typedef CUresult(CUDAAPI* PFN_cuBoxPaintBlue_v13000)(CUbox box);
typedef CUresult(CUDAAPI* PFN_cuBoxPaintBlue_v13000_ptds)(CUbox box);
typedef CUresult(CUDAAPI* PFN_cuBoxUnlock_v13000)(CUbox box, void** contents, const char* key);
typedef CUresult(CUDAAPI* PFN_cuPlanCancel_v13000)(CUdeviceptr address);
