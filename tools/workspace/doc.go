// Package workspace is the only way in which Caisson's own code touches the
// files of a workspace. [Reader] runs in the host process and only reads;
// [Writer] is linked by the guest alone and changes files from inside the
// container. The split is a type, so that no host code can write by mistake.
//
// Both resolve paths by the kernel (openat2 with RESOLVE_BENEATH,
// RESOLVE_NO_MAGICLINKS and RESOLVE_NO_XDEV; os.Root where openat2 is
// missing) below one directory that was opened once and is held. No path is ever
// checked as a string and then opened.
//
// It is a leaf (rank 0): the standard library and golang.org/x/sys only,
// because the guest imports it.
package workspace
