package e2e

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// traceRecord is a record, decoded without caisson's own types.
type traceRecord struct {
	SchemaVersion int             `json:"schema_version"`
	Seq           int             `json:"seq"`
	ID            string          `json:"id"`
	Time          string          `json:"ts"`
	Session       string          `json:"session"`
	Turn          string          `json:"turn"`
	Parent        string          `json:"parent"`
	Actor         string          `json:"actor"`
	Kind          string          `json:"kind"`
	Payload       json.RawMessage `json:"payload"`
	Prev          string          `json:"prev"`
}

type records []traceRecord

// readRecords reads the lines of a run and checks the envelope of each: no
// gap, no broken chain, the right first record.
func readRecords(t *testing.T, text string) records {
	t.Helper()
	var all records
	prev := strings.Repeat("0", sha256.Size*2)
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var r traceRecord
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatalf("line %d of standard output is no record: %v\n%.300s", len(all)+1, err, lines.Text())
		}
		if r.Seq != len(all)+1 || r.Prev != prev || r.SchemaVersion != 1 || r.ID == "" || r.Time == "" || r.Session == "" || r.Actor == "" {
			t.Fatalf("record %d has a bad envelope, want prev %s: %.300s", len(all)+1, prev, lines.Text())
		}
		sum := sha256.Sum256(lines.Bytes())
		prev = hex.EncodeToString(sum[:])
		all = append(all, r)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	if len(all) > 0 && all[0].Kind != "session.created" {
		t.Fatalf("the first record is %s, not session.created", all[0].Kind)
	}
	return all
}

// of returns the records of one kind.
func (all records) of(kind string) records {
	return slices.DeleteFunc(slices.Clone(all), func(r traceRecord) bool { return r.Kind != kind })
}

// decode reads a record's payload.
func decode[T any](t *testing.T, r traceRecord) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(r.Payload, &v); err != nil {
		t.Fatalf("payload of %s: %v", r.Kind, err)
	}
	return v
}

// ended has the fields of session.ended that tests use.
type ended struct {
	Reason     string `json:"reason"`
	ExitStatus int    `json:"exit_status"`
	Truncated  bool   `json:"truncated"`
	Changed    []struct {
		Path   string `json:"path"`
		Change string `json:"change"`
	} `json:"changed"`
	ProcessesKilled int      `json:"processes_killed"`
	Left            []string `json:"left"`
}

// end is the last record's payload, which must be session.ended.
func (all records) end(t *testing.T) ended {
	t.Helper()
	if len(all) == 0 || all[len(all)-1].Kind != "session.ended" {
		t.Fatalf("the last record is not session.ended: %d records", len(all))
	}
	return decode[ended](t, all[len(all)-1])
}

// attested has the fields of an attestation that tests use.
type attested struct {
	Backend   string `json:"backend"`
	Container string `json:"container"`
	Network   string `json:"network"`
	IDMapped  bool   `json:"id_mapped"`
	Image     string `json:"image"`
	Digest    string `json:"image_digest"`
	Service   *struct {
		Program string `json:"program"`
		Healthy bool   `json:"healthy"`
		Tests   int    `json:"tests"`
	} `json:"service"`
}

// attestation returns the attestation of the only sandbox.started.
func (all records) attestation(t *testing.T) attested {
	t.Helper()
	started := all.of("sandbox.started")
	if len(started) != 1 {
		t.Fatalf("%d sandbox.started records, want 1", len(started))
	}
	return decode[struct {
		Attestation attested `json:"attestation"`
	}](t, started[0]).Attestation
}

// toolResult is a call's result as the model gets it.
type toolResult struct {
	ToolUseID string `json:"tool_use_id"`
	Content   []struct {
		Text string `json:"text"`
	} `json:"content"`
	IsError bool `json:"is_error"`
}

// text returns all text of a result.
func (r toolResult) text() string {
	var b strings.Builder
	for _, block := range r.Content {
		b.WriteString(block.Text)
	}
	return b.String()
}

// results returns the calls' results in the order of the calls.
func (all records) results(t *testing.T) []toolResult {
	t.Helper()
	var results []toolResult
	for _, r := range all.of("message") {
		message := decode[struct {
			Blocks []struct {
				ToolResult *toolResult `json:"tool_result"`
			} `json:"blocks"`
		}](t, r)
		for _, block := range message.Blocks {
			if block.ToolResult != nil {
				results = append(results, *block.ToolResult)
			}
		}
	}
	return results
}

// whole reads the values that were too long for a line from the sessions' files,
// and puts them into their records.
func (m *machine) whole(t *testing.T, all records) records {
	t.Helper()
	var out records
	for _, r := range all {
		payload := decode[map[string]any](t, r)
		moved := decode[struct {
			Spilled []struct {
				Pointer string `json:"pointer"`
				Path    string `json:"path"`
			} `json:"spilled"`
		}](t, r)
		for _, s := range moved.Spilled {
			text := readFile(t, filepath.Join(m.stateDir(), "sessions", r.Session, s.Path))
			setAt(t, payload, strings.Split(s.Pointer, "/")[1:], string(text))
		}
		if len(moved.Spilled) > 0 {
			r.Payload = json.RawMessage(mustJSON(t, payload))
		}
		out = append(out, r)
	}
	return out
}

// setAt sets the value that a JSON pointer names.
func setAt(t *testing.T, at any, pointer []string, value string) {
	t.Helper()
	for i, key := range pointer {
		switch v := at.(type) {
		case map[string]any:
			if i == len(pointer)-1 {
				v[key] = value
				return
			}
			at = v[key]
		case []any:
			index, err := strconv.Atoi(key)
			if err != nil || index >= len(v) {
				t.Fatalf("no place %v", pointer)
			}
			at = v[index]
		}
	}
	t.Fatalf("no place %v", pointer)
}

// failures returns the error classes of the failed calls by their ids.
func (all records) failures(t *testing.T) map[string]string {
	t.Helper()
	classes := map[string]string{}
	for _, r := range all.of("tool.failed") {
		failed := decode[struct {
			CallID string `json:"tool_use_id"`
			Class  string `json:"error_class"`
		}](t, r)
		classes[failed.CallID] = failed.Class
	}
	return classes
}

var (
	idPattern = regexp.MustCompile(`\b(ses|trn|rec|tu|err)_[0-9A-Za-z]{26}\b`)
	// timePattern is how the shell tool tells the model what a command took.
	timePattern = regexp.MustCompile(`after \d+(\.\d+)? s\b`)
	portPattern = regexp.MustCompile(`(127\.0\.0\.1|localhost):\d+`)
	// varying are the payload's fields that differ from run to run, or that
	// are facts of a backend. The tokens of a request count the digits of times.
	varying = regexp.MustCompile(`_(ms|ns|us|seconds|bytes)$|^(attestation|backend|configuration|removed|kill|peak_memory|cpu|wall|resources|workspace_id|output_size_bytes|input_tokens)$`)
)

// comparable renders records so that two runs of the same task give the same
// lines: without times, ids and facts of the backend, in an order that does
// not depend on which of two parallel calls, or the start of the sandbox, was
// faster.
func (all records) comparable(t *testing.T, m *machine) []string {
	t.Helper()
	ids := map[string]string{}
	var lines []string
	for _, r := range inCallOrder(t, all) {
		text, err := json.Marshal(withoutVarying(decode[any](t, r)))
		if err != nil {
			t.Fatal(err)
		}
		line := strings.ReplaceAll(string(text), m.workspace, "WORKSPACE")
		line = timePattern.ReplaceAllString(line, "after TIME")
		line = portPattern.ReplaceAllString(line, "HOST:PORT")
		line = idPattern.ReplaceAllStringFunc(line, func(id string) string {
			if ids[id] == "" {
				ids[id] = fmt.Sprintf("%s_%d", id[:strings.IndexByte(id, '_')], len(ids)+1)
			}
			return ids[id]
		})
		lines = append(lines, r.Actor+" "+r.Kind+" "+line)
	}
	return lines
}

// withoutVarying removes the fields that differ, at every depth.
func withoutVarying(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if varying.MatchString(key) {
				delete(v, key)
			} else {
				v[key] = withoutVarying(value)
			}
		}
	case []any:
		for i := range v {
			v[i] = withoutVarying(v[i])
		}
	}
	return v
}

// inCallOrder puts sandbox.started behind session.created, and the tool.*
// records of each round in the order in which the model made the calls.
func inCallOrder(t *testing.T, all records) records {
	t.Helper()
	order := callOrder(t, all)
	rank := func(r traceRecord) int {
		call := decode[struct {
			CallID string `json:"tool_use_id"`
		}](t, r)
		return order[call.CallID]
	}
	var sorted, sandbox, round records
	flush := func() {
		slices.SortStableFunc(round, func(a, b traceRecord) int { return rank(a) - rank(b) })
		sorted = append(sorted, round...)
		round = nil
	}
	for _, r := range all {
		switch {
		case r.Kind == "sandbox.started":
			sandbox = append(sandbox, r)
		case strings.HasPrefix(r.Kind, "tool."):
			round = append(round, r)
		default:
			flush()
			sorted = append(sorted, r)
		}
	}
	flush()
	if len(sorted) == 0 {
		return sandbox
	}
	return slices.Concat(sorted[:1], sandbox, sorted[1:])
}

// callOrder numbers the calls as the model made them.
func callOrder(t *testing.T, all records) map[string]int {
	t.Helper()
	order := map[string]int{}
	for _, r := range all.of("message") {
		message := decode[struct {
			Blocks []struct {
				ToolUse *struct {
					ID string `json:"id"`
				} `json:"tool_use"`
			} `json:"blocks"`
		}](t, r)
		for _, block := range message.Blocks {
			if block.ToolUse != nil {
				order[block.ToolUse.ID] = len(order) + 1
			}
		}
	}
	return order
}
