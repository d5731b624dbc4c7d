package boot

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// firstSilence is how long the guest waits for its configuration: five times as
// long as a host waits for a whole start.
const firstSilence = 5 * time.Minute

// listener reads the connection and fails if nothing arrives for too long. An
// engine that was killed in the middle of a start can leave a container that is
// not recorded anywhere, whose standard input its shim holds open for ever.
type listener struct {
	in *os.File
	// silence bounds each wait; zero does not.
	silence time.Duration
}

// Read waits for bytes. A file that can't be waited for with a bound is read
// without one.
func (l *listener) Read(p []byte) (int, error) {
	var until time.Time
	if l.silence > 0 {
		until = time.Now().Add(l.silence)
	}
	if err := l.in.SetReadDeadline(until); err != nil && !errors.Is(err, os.ErrNoDeadline) {
		return 0, fmt.Errorf("listen to host: %w", err)
	}
	n, err := l.in.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("the host was silent for %v", l.silence)
	}
	return n, err
}
