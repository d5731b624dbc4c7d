package main

import (
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

const setIDBits = linux.S_ISUID | linux.S_ISGID

// refuseSetID changes the system calls that set a mode. A command's files in
// the workspace belong to the workspace's owner on the host, where the
// set-user-ID bit would let anybody run them as that owner. So:
//
//   - chmod and similar calls fail with EPERM if they would set either bit on a
//     file, or set-user-ID on a directory;
//   - calls that create a file ignore the bits.
//
// openat2 is unchanged: the guest uses it, and its filter refuses it to
// commands. mkdir ignores both bits on any kernel, and a directory inherits
// set-group-ID from its parent.
func refuseSetID() {
	for _, table := range kernel.SyscallTables() {
		for number, call := range table.Table {
			replace := replacements[call.Name]
			if replace == nil {
				continue
			}
			call.Fn = replace(call.Fn)
			table.Table[number] = call
		}
		table.Init()
	}
}

// replacements has, by the name of a call, the function that replaces it.
var replacements = map[string]func(kernel.SyscallFn) kernel.SyscallFn{
	"fchmod":   refuseFchmod,
	"chmod":    refuseChmod(-1, 0, 1),
	"fchmodat": refuseChmod(0, 1, 2),
	"open":     clearMode(2),
	"openat":   clearMode(3),
	"creat":    clearMode(1),
	"mknod":    clearMode(1),
	"mknodat":  clearMode(2),
}

// clearMode clears both bits in the mode argument.
func clearMode(mode int) func(kernel.SyscallFn) kernel.SyscallFn {
	return func(call kernel.SyscallFn) kernel.SyscallFn {
		return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
			args[mode].Value &^= setIDBits
			return call(t, number, args)
		}
	}
}

func refuseFchmod(call kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		mode := args[1].ModeT()
		if mode&setIDBits == 0 {
			return call(t, number, args)
		}
		file := t.GetFile(args[0].Int())
		if file == nil {
			return 0, nil, linuxerr.EBADF
		}
		defer file.DecRef(t)
		st, err := file.Stat(t, vfs.StatOptions{Mask: linux.STATX_TYPE})
		if err == nil {
			err = checkSetID(mode, st)
		}
		if err != nil {
			return 0, nil, err
		}
		return 0, nil, file.SetStat(t, modeOptions(mode))
	}
}

// refuseChmod replaces chmod and fchmodat. The numbers are the arguments'
// positions; a negative dir means no directory argument.
func refuseChmod(dir, path, mode int) func(kernel.SyscallFn) kernel.SyscallFn {
	return func(call kernel.SyscallFn) kernel.SyscallFn {
		return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
			if args[mode].ModeT()&setIDBits == 0 {
				return call(t, number, args)
			}
			at := int32(linux.AT_FDCWD)
			if dir >= 0 {
				at = args[dir].Int()
			}
			name, err := t.CopyInString(args[path].Pointer(), linux.PATH_MAX)
			if err == nil {
				err = chmod(t, at, fspath.Parse(name), args[mode].ModeT())
			}
			return 0, nil, err
		}
	}
}

// chmod resolves a path once and changes the mode of the file it found, if
// allowed.
func chmod(t *kernel.Task, at int32, path fspath.Path, mode uint) error {
	if !path.Absolute && !path.HasComponents() {
		return linuxerr.ENOENT
	}
	root := t.FSContext().RootDirectory()
	defer root.DecRef(t)
	start, err := startOf(t, at, path)
	if err != nil {
		return err
	}
	defer start.DecRef(t)
	fs, creds := t.Kernel().VFS(), t.Credentials()
	found, err := fs.GetDentryAt(t, creds, &vfs.PathOperation{Root: root, Start: start, Path: path, FollowFinalSymlink: true}, &vfs.GetDentryOptions{})
	if err != nil {
		return err
	}
	defer found.DecRef(t)
	itself := &vfs.PathOperation{Root: root, Start: found}
	st, err := fs.StatAt(t, creds, itself, &vfs.StatOptions{Mask: linux.STATX_TYPE})
	if err == nil {
		err = checkSetID(mode, st)
	}
	if err != nil {
		return err
	}
	options := modeOptions(mode)
	return fs.SetStatAt(t, creds, itself, &options)
}

// startOf returns what a path is relative to. The caller must release it.
func startOf(t *kernel.Task, at int32, path fspath.Path) (vfs.VirtualDentry, error) {
	if path.Absolute {
		return t.FSContext().RootDirectory(), nil
	}
	if at == linux.AT_FDCWD {
		return t.FSContext().WorkingDirectory(), nil
	}
	file := t.GetFile(at)
	if file == nil {
		return vfs.VirtualDentry{}, linuxerr.EBADF
	}
	defer file.DecRef(t)
	start := file.VirtualDentry()
	start.IncRef()
	return start, nil
}

// checkSetID returns EPERM if a file of this type may not have the mode.
func checkSetID(mode uint, st linux.Statx) error {
	if mode&linux.S_ISUID != 0 || st.Mode&linux.S_IFMT != linux.S_IFDIR {
		return linuxerr.EPERM
	}
	return nil
}

func modeOptions(mode uint) vfs.SetStatOptions {
	return vfs.SetStatOptions{Stat: linux.Statx{Mask: linux.STATX_MODE, Mode: uint16(mode & 0o7777)}}
}
