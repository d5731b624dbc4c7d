// Package setid keeps commands from making set-user-ID and set-group-ID files.
//
// The commands' seccomp filter (package filter) sees a system call's mode, but
// not what its path names, and can't change the mode. If the kernel can, it
// hands calls that may be harmless to [Supervise], which makes them in the
// caller's place with the commands' identity: the set-group-ID bit for
// directories, and new files without either bit. It never lets the kernel
// continue with the call itself: another thread could have changed its
// arguments in memory.
//
// Our own build of gVisor refuses the bits in its kernel. Other kernels without
// notifications refuse all of these calls.
package setid
