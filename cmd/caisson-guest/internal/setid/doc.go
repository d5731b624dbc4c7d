// Package setid keeps commands from making set-user-ID and set-group-ID files.
//
// The commands' seccomp filter (package filter) sees the mode of a system call
// but neither what a path names nor a way to change the mode. Where the kernel
// can, it hands the calls that may be harmless to the [Supervisor], which makes
// them in the caller's place and with the commands' identity: the
// set-group-ID bit for directories, and new files without either bit. It never
// lets the kernel continue with the call itself, whose arguments in memory
// another thread could have changed since.
//
// A gVisor of our own build refuses the bits in its kernel. Any other kernel
// without notifications refuses all of these calls.
package setid
