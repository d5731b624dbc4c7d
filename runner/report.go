package runner

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
)

// Report is how a session ended.
type Report struct {
	Session string `json:"session"`
	// Dir is the session's directory.
	Dir string `json:"dir"`
	// SessionEnded is the content of the last record, its lists whole.
	record.SessionEnded
	// Unapproved is the number of calls that were refused because no one could
	// be asked or no answer came in time.
	Unapproved int `json:"unapproved"`
	// Signal is the number of the signal that ended it, or 0.
	Signal int `json:"signal,omitempty"`
	// Patch is a unified diff of what has one; it is also in workspace.patch.
	Patch string `json:"-"`
	// ApplyRefused reports that Options.Apply applied nothing, because of conflicts.
	ApplyRefused bool `json:"apply_refused,omitempty"`
	// ReplayFailed reports that Options.StrictReplay did not accept the differences.
	ReplayFailed bool `json:"replay_failed,omitempty"`
	// VerifyFiles are the files of Options.Verify.
	VerifyFiles []byte `json:"-"`
	// Err is the cause of a bad end, for the log and errors.Is.
	Err error `json:"-"`
}

// reportWriter writes files beside the trace of a session, without secrets.
type reportWriter struct {
	dir     string
	secrets []redact.Secret
}

// writePatch writes the diffs.
func (w reportWriter) writePatch(r *Report) error {
	if r.Patch == "" {
		return nil
	}
	text := redact.New(w.secrets).Bytes([]byte(r.Patch))
	if string(text) != r.Patch {
		text = append([]byte("# keys were left out of this diff: it does not apply as it is\n"), text...)
	}
	if err := os.WriteFile(filepath.Join(w.dir, "workspace.patch"), text, 0o600); err != nil {
		return fmt.Errorf("write patch: %w", err)
	}
	return nil
}

// writeReport writes the whole report.
func (w reportWriter) writeReport(r Report) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		text = append(record.SafeJSON(redact.New(w.secrets).JSON(text)), '\n')
		err = os.WriteFile(filepath.Join(w.dir, "report.json"), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// shortenLists bounds the lists of the last record.
func shortenLists(e record.SessionEnded) record.SessionEnded {
	if over := len(e.Changed) - record.MaxListed; over > 0 {
		e.Changed, e.ChangedOmitted = e.Changed[:record.MaxListed], e.ChangedOmitted+over
	}
	if over := len(e.HostExecuted) - record.MaxListed; over > 0 {
		e.HostExecuted, e.HostExecutedOmitted = e.HostExecuted[:record.MaxListed], e.HostExecutedOmitted+over
	}
	// What was not renamed comes first, and is never left out.
	renamed := slices.IndexFunc(e.Quarantined, func(q record.Quarantined) bool { return q.To != "" })
	if renamed >= 0 {
		e.Quarantined = e.Quarantined[:min(len(e.Quarantined), max(renamed, record.MaxListed))]
	}
	e.Cleared = e.Cleared[:min(len(e.Cleared), record.MaxListed)]
	e.Denials = e.Denials[:min(len(e.Denials), record.MaxListed)]
	e.Left = e.Left[:min(len(e.Left), record.MaxListed)]
	e.Differences = e.Differences[:min(len(e.Differences), record.MaxListed)]
	if e.Overlay != nil {
		o := *e.Overlay
		for _, list := range []*[]record.PathNote{&o.Conflicts, &o.LeftOut, &o.Failed} {
			n := min(len(*list), record.MaxListed)
			o.Omitted += len(*list) - n
			*list = (*list)[:n]
		}
		e.Overlay = &o
	}
	return e
}
