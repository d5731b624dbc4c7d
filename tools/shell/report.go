package shell

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/egress/preset"
)

func (r Result) succeeded() bool { return r.Status.Success() && r.Exceeded == nil }

func (c Capture) omittedBytes() int64 { return c.Total - int64(len(c.Head)) - int64(len(c.Tail)) }

// headerBytes is reserved in a report for everything but output.
const headerBytes = 1 << 10

// formatReport returns the result for the model, of at most limit bytes, and
// whether output was left out.
func formatReport(r Result, timeout time.Duration, limit int) (text string, cut bool) {
	var b strings.Builder
	b.WriteString(r.exitText())
	fmt.Fprintf(&b, " after %s\n", formatSeconds(r.Wall))
	for _, note := range r.endNotes(timeout) {
		b.WriteString(note + "\n")
	}
	room := max(limit-headerBytes-len(strings.Join(r.networkNotes(), "\n")), 0)
	stdout, stderr := splitRoom(r.Stdout.Total, r.Stderr.Total, room)
	cut = writeStream(&b, "stdout", r.Stdout, stdout)
	cut = writeStream(&b, "stderr", r.Stderr, stderr) || cut
	return b.String(), cut
}

// exitText returns the exit code or signal.
func (r Result) exitText() string {
	bare := sandbox.ExitStatus{Code: r.Status.Code, Signal: r.Status.Signal}
	if bare.Signal != 0 {
		return "killed by " + bare.String()
	}
	return bare.String()
}

// crossedDevices reports whether the command failed and its output mentions EXDEV.
func (r Result) crossedDevices() bool {
	return !r.Status.Success() && slices.ContainsFunc([][]byte{r.Stdout.Head, r.Stdout.Tail, r.Stderr.Head, r.Stderr.Tail}, func(text []byte) bool {
		return bytes.Contains(bytes.ToLower(text), []byte("cross-device link"))
	})
}

// neededPreset returns the egress preset that the command lacked, or "". It ignores
// the exit status, because a pipe may hide that its first program failed, but looks
// only for whole phrases of programs.
func (r Result) neededPreset() string {
	if !r.Offline {
		return ""
	}
	return preset.NeededBy(r.Stdout.Head, r.Stdout.Tail, r.Stderr.Head, r.Stderr.Tail)
}

// endNotes returns sentences about why the command was ended, what it left, and
// what it lacked.
func (r Result) endNotes(timeout time.Duration) []string {
	var notes []string
	add := func(is bool, format string, args ...any) {
		if is {
			notes = append(notes, fmt.Sprintf(format, args...))
		}
	}
	add(r.Status.TimedOut, "The command timed out after %s and was stopped; ask for more with timeout_seconds, or do less at once.", formatSeconds(timeout))
	add(r.Status.OOMKilled, "The kernel killed a process because the sandbox ran out of memory.")
	add(r.PIDsLimitHit, "The sandbox's limit of processes was reached, and it could start no more.")
	add(len(r.Full) > 0, "No space is left in %s, which %s bounded and in memory; remove what is not needed, or use the workspace.", strings.Join(r.Full, " and "), verbFor(len(r.Full), "is", "are"))
	if x := r.Exceeded; x != nil {
		cure := "Remove what is not needed."
		switch {
		case x.Dir != "":
			cure = "Remove what is not needed there, or use the workspace."
		case x.Files:
			cure = "Remove files that are not needed."
		}
		add(true, "The command was stopped: %v. %s", x, cure)
	}
	add(r.Status.Code == 127 && bytes.Contains(r.Stderr.Head, []byte("apply_patch")), "apply_patch is a tool, not a program: call the tool, with the whole patch as its argument.")
	add(r.crossedDevices(), "Directories can't be renamed between mounts, nor, in overlay mode or below a writable root, if they were there before the session. Use mv, which copies; for git mv OLD NEW, use mv OLD NEW && git add -A OLD NEW.")
	add(r.Status.Cancelled, "The command was cancelled.")
	add(r.Kill.AfterExit, "The command left %s running, which %s killed: nothing may outlive its command.", limits.FormatCount(r.KilledProcesses(), "process"), verbFor(r.KilledProcesses(), "was", "were"))
	add(r.KilledProcesses() > 0 && !r.Kill.AfterExit, "%s did not stop when asked and had to be killed.", limits.FormatCount(r.KilledProcesses(), "process"))
	add(r.Kill.Left > 0, "%s could not be killed.", limits.FormatCount(r.Kill.Left, "process"))
	notes = append(notes, r.networkNotes()...)
	name := r.neededPreset()
	add(name != "", "Commands of this session have no network, which this one needed to download packages. The user can allow the registries with the egress preset %s. A command can't.", name)
	add(r.Notice != "", "%s", r.Notice)
	return notes
}

const (
	maxRefusedNotes = 5
	maxAllowedBytes = 240
	maxHostBytes    = 100
)

// networkNotes returns lines about refused connections and what is allowed:
// programs often hide why a connection failed.
func (r Result) networkNotes() []string {
	if len(r.Refused) == 0 {
		return nil
	}
	var notes []string
	for _, one := range r.Refused[:min(len(r.Refused), maxRefusedNotes)] {
		note := fmt.Sprintf("network refused: %s (%s", tools.Elide(one.Host, maxHostBytes), one.Reason)
		if one.Count > 1 {
			note += fmt.Sprintf(", %d times", one.Count)
		}
		notes = append(notes, note+")")
	}
	if over := len(r.Refused) - maxRefusedNotes; over > 0 {
		notes = append(notes, fmt.Sprintf("network refused: and %d more", over))
	}
	allowed, left := "", len(r.Allowed)
	for _, rule := range r.Allowed {
		if len(allowed)+len(rule) > maxAllowedBytes {
			break
		}
		if allowed != "" {
			allowed += ", "
		}
		allowed += rule
		left--
	}
	switch {
	case len(r.Allowed) == 0:
		return notes
	case allowed == "":
		return append(notes, fmt.Sprintf("network allowed: %d rules", left))
	case left > 0:
		allowed += fmt.Sprintf(" and %d more", left)
	}
	return append(notes, "network allowed: "+allowed)
}

func verbFor(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// formatSeconds formats a duration as 0.04 s, 12.3 s or 600 s.
func formatSeconds(d time.Duration) string {
	switch s := d.Seconds(); {
	case s < 1:
		return fmt.Sprintf("%.2f s", s)
	case s < 60:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", s), ".0") + " s"
	default:
		return fmt.Sprintf("%.0f s", s)
	}
}

// splitRoom divides the room for output. Each stream gets half, and what the other
// leaves.
func splitRoom(stdout, stderr int64, room int) (int, int) {
	half := int64(room / 2)
	switch {
	case stdout <= half:
		return int(stdout), room - int(stdout)
	case stderr <= half:
		return room - int(stderr), int(stderr)
	}
	return room / 2, room - room/2
}

// writeStream writes one stream with its label and size. It reports whether it left
// out a part.
func writeStream(b *strings.Builder, name string, c Capture, room int) (cut bool) {
	if c.Total == 0 {
		fmt.Fprintf(b, "%s: empty\n", name)
		return false
	}
	head, tail := fitCapture(c, room)
	omitted := c.Total - int64(len(head)) - int64(len(tail))
	if omitted == 0 {
		fmt.Fprintf(b, "%s (%s):\n", name, limits.FormatCount(int(c.Total), "byte"))
		writeLine(b, head)
		return false
	}
	fmt.Fprintf(b, "%s (%s, the first %d and the last %d shown):\n", name, limits.FormatCount(int(c.Total), "byte"), len(head), len(tail))
	writeLine(b, head)
	if c.Handle != "" {
		fmt.Fprintf(b, "[… %s left out …; %s shows them by the handle %s]\n", limits.FormatCount(int(omitted), "byte"), OutputName, c.Handle)
	} else {
		fmt.Fprintf(b, "[… %s left out …]\n", limits.FormatCount(int(omitted), "byte"))
	}
	writeLine(b, tail)
	return true
}

// fitCapture shortens a capture to room bytes without splitting runes.
func fitCapture(c Capture, room int) (head, tail []byte) {
	head, tail = c.Head, c.Tail
	if c.omittedBytes() == 0 {
		all := append(append([]byte(nil), head...), tail...)
		if len(all) <= room {
			return all, nil
		}
		head, tail = all, all
	}
	half := room / 2
	if len(tail) < room-half {
		half = room - len(tail)
	}
	head = wholeHead(head[:min(half, len(head))])
	tail = wholeTail(tail[len(tail)-min(room-len(head), len(tail)):])
	return head, tail
}

// wholeHead returns b without an incomplete rune at its end.
func wholeHead(b []byte) []byte { return b[:len(b)-partialRuneLen(b)] }

// wholeTail returns b without a rune's rest at its beginning.
func wholeTail(b []byte) []byte {
	for i := range min(utf8.UTFMax, len(b)) {
		if utf8.RuneStart(b[i]) {
			return b[i:]
		}
	}
	if len(b) < utf8.UTFMax {
		return nil
	}
	return b // not text
}

func writeLine(b *strings.Builder, text []byte) {
	b.Write(text)
	if len(text) > 0 && text[len(text)-1] != '\n' {
		b.WriteByte('\n')
	}
}

// maxRefusedMetadata bounds the refused hosts in a result's metadata. Each also has
// its own record.
const maxRefusedMetadata = 50

// PresetKey is the metadata key for the egress preset that the command lacked.
const PresetKey = "needs_preset"

func resultMetadata(r Result) map[string]any {
	m := map[string]any{
		"exit_code":     r.Status.Code,
		"stdout_bytes":  r.Stdout.Total,
		"stdout_sha256": r.Stdout.SHA256,
		"stderr_bytes":  r.Stderr.Total,
		"stderr_sha256": r.Stderr.SHA256,
		"wall_ms":       r.Wall.Milliseconds(),
		"cpu_ms":        r.CPU.Milliseconds(),
		"killed":        r.KilledProcesses(),
		"left":          r.Kill.Left,
	}
	if r.Status.Signal != 0 {
		m["signal"] = r.Status.Signal
	}
	for key, file := range map[string]string{"stdout_spill": r.Stdout.Spill, "stderr_spill": r.Stderr.Spill} {
		if file != "" {
			m[key] = file
		}
	}
	for key, set := range map[string]bool{
		"oom_killed": r.Status.OOMKilled, "timed_out": r.Status.TimedOut, "cancelled": r.Status.Cancelled, "killed_after_exit": r.Kill.AfterExit,
		"pids_limit_hit": r.PIDsLimitHit,
	} {
		if set {
			m[key] = true
		}
	}
	if r.PeakMemory > 0 {
		m["peak_memory_bytes"] = r.PeakMemory
	}
	if len(r.Full) > 0 {
		m["full"] = r.Full
	}
	if len(r.Refused) > 0 {
		m["network"] = map[string]any{"refused": r.Refused[:min(len(r.Refused), maxRefusedMetadata)], "refused_hosts": len(r.Refused)}
	}
	if name := r.neededPreset(); name != "" {
		m[PresetKey] = name
	}
	if x := r.Exceeded; x != nil {
		key := "disk_reserve"
		if x.Dir != "" {
			key = "full"
			m["full"] = append(r.Full, x.Dir)
		}
		unit := "_bytes"
		if x.Files {
			unit = "_files"
		}
		m[key+unit] = x.Limit
	}
	return m
}
