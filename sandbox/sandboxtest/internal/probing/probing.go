// Package probing has what the suite and its probe share. It is separate so
// that the probe does not link a test framework.
package probing

// Pattern is the endless stream that the probe's flood verb writes. Byte i
// mixes i's bits, so that a lost, doubled or moved piece shows.
type Pattern struct{ Pos int64 }

// Read fills p. It never fails or ends.
func (s *Pattern) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = patternByte(s.Pos)
		s.Pos++
	}
	return len(p), nil
}

// patternByte puts a newline after every 63 printable bytes, to exercise
// line-based code.
func patternByte(i int64) byte {
	if i%64 == 63 {
		return '\n'
	}
	return byte(' ' + (i+i/64*7+i>>16*13)%90)
}

// EchoEnd is what the other end of an echo sends when it has read everything.
const EchoEnd = "end"

// PatternAt returns n bytes of the stream from pos on.
func PatternAt(pos int64, n int) []byte {
	p := make([]byte, n)
	_, _ = (&Pattern{Pos: pos}).Read(p)
	return p
}

// Facts is the JSON answer of the probe's facts verb.
type Facts struct {
	UID, GID, EUID, EGID int
	// Groups counts the supplementary groups except the one that marks a
	// command's processes.
	Groups int
	// The capability sets, in hex, as in /proc/self/status.
	CapInh, CapPrm, CapEff, CapBnd, CapAmb string
	NoNewPrivs, Seccomp                    string
	// Interfaces are the network interfaces that are up or not lo.
	Interfaces []string
	FDs        []int
	Hostname   string
	// Localhost and Own are the addresses of localhost and Hostname.
	Localhost, Own []string
}
