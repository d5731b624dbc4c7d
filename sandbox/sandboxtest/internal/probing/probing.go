// Package probing holds what the suite and its probe share: the bytes of a
// flood and the facts that the probe reports about itself. It is apart from the
// suite so that the probe does not link a test framework.
package probing

// Pattern is the endless stream that the probe's flood verb writes: byte i is
// a mix of i's bits, so that a piece that is lost, doubled or moved shows. Its
// zero value starts at byte 0.
type Pattern struct{ Pos int64 }

// Read fills p; it never fails and never ends.
func (s *Pattern) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = patternByte(s.Pos)
		s.Pos++
	}
	return len(p), nil
}

// patternByte puts a newline after every 63 printable bytes, so that
// line-based code is exercised too.
func patternByte(i int64) byte {
	if i%64 == 63 {
		return '\n'
	}
	return byte(' ' + (i+i/64*7+i>>16*13)%90)
}

// EchoEnd is sent by the other end of an echo when it has read all.
const EchoEnd = "end"

// PatternAt is n bytes of the stream from pos on.
func PatternAt(pos int64, n int) []byte {
	p := make([]byte, n)
	_, _ = (&Pattern{Pos: pos}).Read(p)
	return p
}

// Facts is the answer of the probe's facts verb about itself, as JSON.
type Facts struct {
	UID, GID, EUID, EGID int
	// Groups counts supplementary groups that mean something, so not the one
	// that marks a command's processes.
	Groups int
	// The capability sets, in hex, as /proc/self/status writes them.
	CapInh, CapPrm, CapEff, CapBnd, CapAmb string
	NoNewPrivs, Seccomp                    string
	// Interfaces are the network interfaces that are up, and any but lo.
	Interfaces []string
	// FDs are the descriptors that were open at the start.
	FDs      []int
	Hostname string
	// Localhost and Own are the addresses that localhost and Hostname resolve to.
	Localhost, Own []string
}
