// Package workspace is the only way in which Caisson's own code touches the files
// of a workspace. [Reader] runs in the host process and only reads. [Writer] is
// linked by the guest alone and changes files from inside the container. They are
// separate types so that host code can't write by mistake.
//
// Both hold one directory open and let the kernel resolve paths below it: openat2
// with RESOLVE_BENEATH, RESOLVE_NO_MAGICLINKS and RESOLVE_NO_XDEV, or, where
// openat2 is missing, one openat per name. No path is ever checked as a string and
// then opened.
//
// The package is a leaf (rank 0) that imports only the standard library and
// golang.org/x/sys, because the guest imports it.
package workspace
