package trace

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
)

// TestReadBegin reads the task of a session from its first records, of which the
// instructions may be long, and no further than beginRecords.
func TestReadBegin(t *testing.T) {
	message := func(role loop.Role, text string) record.Payload {
		return record.Message{Role: role, Blocks: []loop.Block{{Text: &loop.Text{Text: text}}}}
	}
	long := message(loop.RoleSystem, strings.Repeat("x", 60_000))
	user := message(loop.RoleUser, "Make it so.")
	for name, c := range map[string]struct {
		payloads []record.Payload
		torn     string
		task     string
		err      bool
	}{
		"a task":              {[]record.Payload{record.SessionCreated{Task: "Engage."}, user}, "", "Engage.", false},
		"the first message":   {[]record.Payload{record.SessionCreated{}, record.TurnStarted{}, long, user, message(loop.RoleUser, "Later.")}, "", "Make it so.", false},
		"too late":            {[]record.Payload{record.SessionCreated{}, long, long, long, long, long, long, long, user}, "", "", false},
		"no message":          {[]record.Payload{record.SessionCreated{}}, "", "", false},
		"a torn line":         {[]record.Payload{record.SessionCreated{}}, `{"seq":2`, "", false},
		"damage":              {[]record.Payload{record.SessionCreated{}}, "{\n", "", false},
		"another first":       {[]record.Payload{user}, "", "", true},
		"damage at its start": {nil, "{\n", "", true},
	} {
		var lines strings.Builder
		for i, p := range c.payloads {
			raw, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			text, err := record.Encode(record.Record{Seq: int64(i + 1), Kind: p.Kind(), Payload: raw})
			if err != nil {
				t.Fatal(err)
			}
			lines.Write(append(text, '\n'))
		}
		b, err := ReadBegin(strings.NewReader(lines.String() + c.torn))
		if b.Task != c.task || (err != nil) != c.err {
			t.Errorf("%s: got the task %q, %v", name, b.Task, err)
		}
	}
	for _, none := range []string{"", `{"seq":1`} {
		if _, err := ReadBegin(strings.NewReader(none)); !errors.Is(err, io.EOF) {
			t.Errorf("%q: got %v, want io.EOF", none, err)
		}
	}
}
