package filter

import "golang.org/x/sys/unix"

const setIDBits = unix.S_ISUID | unix.S_ISGID

// creating are the flags with which open creates a file and uses its mode.
const creating = unix.O_CREAT | unix.O_TMPFILE&^unix.O_DIRECTORY

// setIDRules are the rules for calls that set a mode, except mkdir: kernels
// ignore both bits there.
func setIDRules(action SetID) []rule {
	rules := []rule{
		{unix.SYS_FCHMOD, changeMode(1, action)},
		{unix.SYS_FCHMODAT, changeMode(2, action)},
		{unix.SYS_FCHMODAT2, changeMode(2, action)},
	}
	for call, arg := range changeModeHere {
		rules = append(rules, rule{call, changeMode(arg, action)})
	}
	if action == AllowSetID {
		return rules
	}
	rules = append(
		rules,
		rule{unix.SYS_OPENAT, openFile(2, action)},
		rule{unix.SYS_MKNODAT, createFile(2, action)},
	)
	for call, arg := range openFileHere {
		rules = append(rules, rule{call, openFile(arg, action)})
	}
	for call, arg := range createFileHere {
		rules = append(rules, rule{call, createFile(arg, action)})
	}
	return rules
}

// changeMode refuses a mode with the set-user-ID bit. It takes the action for
// one with only the set-group-ID bit, which a directory may have.
func changeMode(arg int, action SetID) []unix.SockFilter {
	return []unix.SockFilter{
		loadArg(arg),
		jump(unix.BPF_JSET, unix.S_ISUID, 0, 1),
		returnRefusal(),
		jump(unix.BPF_JSET, unix.S_ISGID, 0, 1),
		ret(uint32(action)),
		ret(unix.SECCOMP_RET_ALLOW),
	}
}

// createFile takes the action for a mode with either bit.
func createFile(arg int, action SetID) []unix.SockFilter {
	return []unix.SockFilter{
		loadArg(arg),
		jump(unix.BPF_JSET, setIDBits, 0, 1),
		ret(uint32(action)),
		ret(unix.SECCOMP_RET_ALLOW),
	}
}

// openFile is createFile for the mode after the flags. Unless the flags create
// a file, the mode is garbage.
func openFile(flags int, action SetID) []unix.SockFilter {
	return append([]unix.SockFilter{
		loadArg(flags),
		jump(unix.BPF_JSET, creating, 1, 0),
		ret(unix.SECCOMP_RET_ALLOW),
	}, createFile(flags+1, action)...)
}
