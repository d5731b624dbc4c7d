package runner

import (
	"encoding/json"
	"math"
	"path/filepath"
	"strings"
	"sync"

	"github.com/caisson-run/caisson/runner/internal/linelog"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
)

const (
	// maxBodyBytes bounds the file with the bodies of a session.
	maxBodyBytes = 256 << 20
	// maxKeptRequests is the number of last requests, and maxKeptBytes the size of each,
	// to which a new one is compared. Several conversations can alternate.
	maxKeptRequests = 4
	maxKeptBytes    = 8 << 20
)

// bodyLog writes the bodies of requests to models, each as the difference to an earlier
// one: agents send the whole conversation again. It is safe for concurrent use.
type bodyLog struct {
	lines  *linelog.Log
	redact *redact.Redactor

	mu   sync.Mutex
	kept []keptRequest // the last ones, oldest first
}

type keptRequest struct {
	call int64
	text string
}

func newBodyLog(dir string, secrets []redact.Secret) *bodyLog {
	r := redact.New(secrets)
	return &bodyLog{lines: linelog.New(filepath.Join(dir, record.BridgeFile), r, math.MaxInt, maxBodyBytes), redact: r}
}

func (l *bodyLog) add(call int64, request, answer []byte) error {
	clean := func(text []byte) string { return strings.ToValidUTF8(string(l.redact.Bytes(text)), "\uFFFD") }
	l.mu.Lock()
	defer l.mu.Unlock()
	text := clean(request)
	line := record.BridgeBodies{Call: call, Request: text, Answer: clean(answer)}
	for _, k := range l.kept {
		if start, end := commonEnds(k.text, text); start+end > line.Shared+line.SharedEnd {
			line.Base, line.Shared, line.SharedEnd, line.Request = k.call, start, end, text[start:len(text)-end]
		}
	}
	written, err := json.Marshal(line)
	if err != nil {
		return err
	}
	added, err := l.lines.Add(written)
	if added && len(text) <= maxKeptBytes {
		l.kept = append(l.kept, keptRequest{call: call, text: text})
		l.kept = l.kept[max(0, len(l.kept)-maxKeptRequests):]
	}
	return err
}

// commonEnds returns how many bytes two texts have in common at their start and at their
// end, without overlap and without cutting a character of b.
func commonEnds(a, b string) (start, end int) {
	most := min(len(a), len(b))
	for start < most && a[start] == b[start] {
		start++
	}
	for start > 0 && start < len(b) && b[start]&0xc0 == 0x80 {
		start--
	}
	for end < most-start && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	for end > 0 && b[len(b)-end]&0xc0 == 0x80 {
		end--
	}
	return start, end
}
