package runner

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
)

// Report tells how a session ended.
type Report struct {
	Session string `json:"session"`
	// Dir is the session's directory.
	Dir string `json:"dir"`
	// SessionEnded is the last record with its lists in full.
	record.SessionEnded
	// Unapproved counts the calls that were refused because nobody could be asked or no
	// answer came in time.
	Unapproved int `json:"unapproved"`
	// Signal is the number of the signal that ended the session, or 0.
	Signal int `json:"signal,omitempty"`
	// Patch is a unified diff of the changes that have one, as in workspace.patch.
	Patch string `json:"-"`
	// ApplyRefused reports that Options.Apply applied nothing because of conflicts.
	ApplyRefused bool `json:"apply_refused,omitempty"`
	// ReplayFailed reports differences under Options.StrictReplay.
	ReplayFailed bool `json:"replay_failed,omitempty"`
	// VerifyFiles are the files that Options.Verify names.
	VerifyFiles []byte `json:"-"`
	// Err is the cause of a bad end.
	Err error `json:"-"`
}

// writePatch writes the patch beside the session's trace, without secrets, and sets PatchSHA256.
// Without a patch, it removes the one that a session left before it was resumed.
func (r *Report) writePatch(secrets []redact.Secret) error {
	path := filepath.Join(r.Dir, record.PatchFile)
	if r.Patch == "" {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the earlier patch: %w", err)
		}
		return nil
	}
	text := redact.New(secrets).Bytes([]byte(r.Patch))
	if string(text) != r.Patch {
		text = append([]byte("# keys were left out of this diff: it does not apply as it is\n"), text...)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return fmt.Errorf("write patch: %w", err)
	}
	sum := sha256.Sum256(text)
	r.PatchSHA256 = hex.EncodeToString(sum[:])
	return nil
}

// writeReport writes the whole report beside the session's trace, without secrets.
func (r *Report) writeReport(secrets []redact.Secret) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		text = append(record.SafeJSON(redact.New(secrets).JSON(text)), '\n')
		err = os.WriteFile(filepath.Join(r.Dir, "report.json"), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func shortenLists(e record.SessionEnded) record.SessionEnded {
	if over := len(e.Changed) - record.MaxListed; over > 0 {
		e.Changed, e.ChangedOmitted = e.Changed[:record.MaxListed], e.ChangedOmitted+over
	}
	if over := len(e.HostExecuted) - record.MaxListed; over > 0 {
		e.HostExecuted, e.HostExecutedOmitted = e.HostExecuted[:record.MaxListed], e.HostExecutedOmitted+over
	}
	// Files that were not renamed come first and are always kept.
	renamed := slices.IndexFunc(e.Quarantined, func(q record.Quarantined) bool { return q.To != "" })
	if renamed >= 0 {
		e.Quarantined = e.Quarantined[:min(len(e.Quarantined), max(renamed, record.MaxListed))]
	}
	e.Cleared = firstListed(e.Cleared)
	e.Denials = firstListed(e.Denials)
	e.Left = firstListed(e.Left)
	e.Differences = firstListed(e.Differences)
	if e.Overlay != nil {
		o := *e.Overlay
		for _, list := range []*[]record.PathNote{&o.Conflicts, &o.LeftOut, &o.Failed} {
			shown := firstListed(*list)
			o.Omitted += len(*list) - len(shown)
			*list = shown
		}
		e.Overlay = &o
	}
	return e
}

// firstListed returns as much of a list as a record holds.
func firstListed[T any](list []T) []T { return list[:min(len(list), record.MaxListed)] }
