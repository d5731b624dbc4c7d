package relay

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// owners finds the users of sockets: by NETLINK_SOCK_DIAG, or in /proc if the
// kernel has none (gVisor). On Linux the files of /proc take 10 ms.
type owners struct {
	mu    sync.Mutex
	fd    int // -1 for /proc
	seq   uint32
	files []procFile
	buf   []byte // for files
}

// procFile is a file of /proc that lists sockets. In gVisor, opening one takes
// three times as long as reading it.
type procFile struct {
	*os.File
	mapped bool // its addresses are IPv6
}

func newOwners() *owners {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return &owners{fd: -1, files: openProc(), buf: make([]byte, procRead)}
	}
	return &owners{fd: fd}
}

func openProc() []procFile {
	var files []procFile
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		if f, err := os.Open(name); err == nil {
			files = append(files, procFile{f, strings.HasSuffix(name, "6")})
		}
	}
	return files
}

func (o *owners) useDiag() bool { return o.fd >= 0 }

// find returns the user of the socket at the far end of a connection, or nil:
// on Linux a closed socket shows user 0.
func (o *owners) find(local, remote netip.AddrPort) *uint32 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.useDiag() {
		for _, f := range o.files { // the kernel writes it anew for each read from the beginning
			lines := bufio.NewScanner(io.NewSectionReader(f, 0, math.MaxInt64))
			lines.Buffer(o.buf, procRead)
			if uid := findOwner(lines, procAddr(remote, f.mapped), procAddr(local, f.mapped)); uid != nil {
				return uid
			}
		}
		return nil
	}
	o.seq++
	if err := unix.Sendto(o.fd, diagRequest(o.seq, local, remote), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil
	}
	var answer [512]byte
	for { // the kernel has answered already
		n, _, err := unix.Recvfrom(o.fd, answer[:], 0)
		if err != nil {
			return nil
		}
		if uid, mine := parseDiag(answer[:n], o.seq, local.Port()); mine {
			return uid
		}
	}
}

// procRead is how much of a /proc file is read at once, in bytes: 200 sockets.
const procRead = 32 << 10

// Sizes and numbers of linux/inet_diag.h, linux/sock_diag.h and
// linux/netlink.h.
const (
	headerSize       = 16
	diagRequestSize  = headerSize + 56
	sockDiagByFamily = 20
	diagID           = headerSize + 4
	diagUID          = diagID + 48 + 12
	diagInode        = diagUID + 4
	diagSize         = diagInode + 4
)

// diagRequest asks for the program's socket, whose own address is our remote
// one. It also finds an IPv6 socket with a mapped address.
func diagRequest(seq uint32, local, remote netip.AddrPort) []byte {
	b := make([]byte, diagRequestSize)
	native := binary.NativeEndian
	native.PutUint32(b[0:], diagRequestSize)
	native.PutUint16(b[4:], sockDiagByFamily)
	native.PutUint16(b[6:], unix.NLM_F_REQUEST)
	native.PutUint32(b[8:], seq)
	b[headerSize], b[headerSize+1] = unix.AF_INET, unix.IPPROTO_TCP
	native.PutUint32(b[headerSize+4:], ^uint32(0)) // in any state
	id := b[headerSize+8:]
	binary.BigEndian.PutUint16(id[0:], remote.Port())
	binary.BigEndian.PutUint16(id[2:], local.Port())
	from, to := remote.Addr().As4(), local.Addr().As4()
	copy(id[4:], from[:])
	copy(id[20:], to[:])
	native.PutUint64(id[40:], ^uint64(0)) // no cookie
	return b
}

// parseDiag returns the user in an answer, or nil, and whether it answers the
// request seq for a socket connected to port. If that socket is gone, the
// kernel answers with one that listens at its address.
func parseDiag(b []byte, seq uint32, port uint16) (uid *uint32, mine bool) {
	native := binary.NativeEndian
	if len(b) < headerSize || native.Uint32(b[8:]) != seq {
		return nil, false
	}
	if len(b) < diagSize || native.Uint16(b[4:]) != sockDiagByFamily || native.Uint32(b[diagInode:]) == 0 ||
		binary.BigEndian.Uint16(b[diagID+2:]) != port {
		return nil, true
	}
	return new(native.Uint32(b[diagUID:])), true
}

// procAddr returns an address as in /proc's files: words in the processor's
// order, which is always little-endian here.
func procAddr(a netip.AddrPort, mapped bool) string {
	b := a.Addr().As4()
	prefix := ""
	if mapped {
		prefix = "0000000000000000FFFF0000"
	}
	return fmt.Sprintf("%s%02X%02X%02X%02X:%04X", prefix, b[3], b[2], b[1], b[0], a.Port())
}

// findOwner returns the user of a socket with an inode in such a file (proc(5),
// net/tcp).
func findOwner(lines *bufio.Scanner, local, remote string) *uint32 {
	const address, peer, user, inode = 1, 2, 7, 9
	for lines.Scan() {
		if !strings.Contains(lines.Text(), local) {
			continue
		}
		fields := strings.Fields(lines.Text())
		if len(fields) <= inode || fields[address] != local || fields[peer] != remote || fields[inode] == "0" {
			continue
		}
		n, err := strconv.ParseUint(fields[user], 10, 32)
		if err != nil {
			return nil
		}
		return new(uint32(n))
	}
	return nil
}
