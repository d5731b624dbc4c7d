package setid

import "golang.org/x/sys/unix"

// performHere makes a call that only this processor has, through its modern
// equivalent.
func (c *caller) performHere(call int, args [6]uint64) (result, error) {
	const here = int32(unix.AT_FDCWD)
	switch call {
	case unix.SYS_CHMOD:
		return nothing, c.changeMode(here, args[0], args[1], 0)
	case unix.SYS_OPEN:
		return c.openFile(here, args[0], args[1], args[2])
	case unix.SYS_CREAT:
		return c.openFile(here, args[0], unix.O_CREAT|unix.O_WRONLY|unix.O_TRUNC, args[1])
	case unix.SYS_MKNOD:
		return nothing, c.makeNode(here, args[0], args[1])
	}
	return nothing, unix.EPERM
}
