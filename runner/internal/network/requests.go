package network

import (
	"encoding/json"
	"math"
	"path/filepath"
	"strings"

	"github.com/caisson-run/caisson/runner/internal/linelog"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/tools/egress"
)

const maxRequests = 100_000

// maxURLBytes bounds the URL in a line. URLs can have 8 KiB, and since repeated headers are
// compressed, no budget bounds their total.
const maxURLBytes = 1024

// clipText removes secrets and then shortens the text: a secret across the cut would leave
// its beginning.
func (n *Network) clipText(s string, most int) string {
	s = n.redactor.Text(s)
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// requestLine is a line of [record.RequestsFile], for example
//
//	{"connection":3,"method":"GET","url":"https://registry.npmjs.org/left-pad","status":200,"received":1024,"sha256":"…","complete":true}
type requestLine struct {
	Conn     int64  `json:"connection"`
	Server   string `json:"server,omitempty"` // the MCP server that made it
	Command  int    `json:"command,omitempty"`
	Method   string `json:"method"`
	URL      string `json:"url"` // without its query
	Status   int    `json:"status"`
	Received int64  `json:"received"`
	SHA256   string `json:"sha256,omitempty"`
	Complete bool   `json:"complete"`
	Cached   bool   `json:"cached,omitempty"`
}

// openRequestLog sets the log of a session's requests.
func (n *Network) openRequestLog(o Options) {
	n.redactor = redact.New(o.Hidden)
	n.requests = linelog.New(filepath.Join(o.Dir, record.RequestsFile), n.redactor, maxRequests, math.MaxInt64)
}

func (n *Network) logRequest(server string, r egress.Requested) error {
	if r.Cached { // no connection counts it
		n.mu.Lock()
		n.totals.Requests++
		n.totals.Cached++
		n.mu.Unlock()
	}
	text, err := json.Marshal(requestLine{r.ID, server, r.Command, n.clipText(r.Method, 32), n.clipText(r.URL, maxURLBytes), r.Status, r.Received, r.SHA256, r.Complete, r.Cached})
	if err != nil {
		return err
	}
	_, err = n.requests.Add(text)
	return err
}
