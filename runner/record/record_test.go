package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"

	"github.com/caisson-run/caisson/runner/internal/recordtest"
)

var update = flag.Bool("update", false, "write the golden files and docs/record.schema.json")

const schemaFile = "../../docs/record.schema.json"

// golden returns the lines of one session with every kind, with fixed IDs.
func golden(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	const digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	prev := strings.Repeat("0", 64)
	for i, p := range samples() {
		raw, err := marshalUnescaped(p)
		if err != nil {
			t.Fatal(err)
		}
		text, err := Encode(Record{
			SchemaVersion: SchemaVersion, Seq: int64(i + 1), ID: "rec_01JD00000000000000000000" + digits[i/32:i/32+1] + digits[i%32:i%32+1],
			Time:    time.Date(2026, 11, 20, 10, 0, i, 1000, time.FixedZone("", 3600)),
			Session: "ses_01JD0000000000000000000000", Actor: ActorSystem, Kind: p.Kind(), Payload: raw, Prev: prev,
		})
		if err != nil {
			t.Fatal(err)
		}
		out.Write(append(text, '\n'))
		prev = sum256(text)
	}
	return out.Bytes()
}

func TestEveryKindHasOnePayloadASampleAndAName(t *testing.T) {
	kinds := map[Kind]bool{}
	for _, p := range Payloads() {
		if kinds[p.Kind()] {
			t.Errorf("two payloads of %s", p.Kind())
		}
		kinds[p.Kind()] = true
	}
	for _, p := range samples() {
		if !kinds[p.Kind()] {
			t.Errorf("sample %s is not in the table, or twice", p.Kind())
		}
		if reflect.ValueOf(p).IsZero() && p.Kind() != KindTurnStarted {
			t.Errorf("sample %s is empty", p.Kind())
		}
		delete(kinds, p.Kind())
	}
	for k := range kinds {
		t.Errorf("no sample of %s: add a filled payload to samples in samples_test.go", k)
	}
	source, err := os.ReadFile("kind.go")
	if err != nil {
		t.Fatal(err)
	}
	constants := regexp.MustCompile(`(?m)^\tKind\w+ +Kind = "(.+)"$`).FindAllSubmatch(source, -1)
	for _, m := range constants {
		if k := Kind(m[1]); !slices.ContainsFunc(Payloads(), func(p Payload) bool { return p.Kind() == k }) {
			t.Errorf("no payload of %s: add its row to Payloads in kind.go", k)
		}
	}
	if len(constants) < 20 {
		t.Errorf("%d constants found in kind.go: the pattern matches too little", len(constants))
	}
}

func TestGoldenRecords(t *testing.T) {
	got := golden(t)
	file := filepath.Join("testdata", "records.jsonl")
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
		t.Errorf("records changed; a change of what is there needs a new schema version (-want +got):\n%s", diff)
	}
	trace, err := ReadTrace(bytes.NewReader(got))
	if err != nil || trace.Torn || len(trace.Records) != len(samples()) {
		t.Errorf("read back: %d records, torn %v, %v", len(trace.Records), trace.Torn, err)
	}
}

func TestGoldenRecordsFitTheSchema(t *testing.T) {
	want, err := json.MarshalIndent(recordSchema(t), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, '\n')
	if *update {
		if err := os.WriteFile(schemaFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s is not what the types say; go test ./runner/record -update (-want +got):\n%s", schemaFile, diff)
	}
	schema, err := recordtest.Compile(got)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := os.ReadFile(filepath.Join("testdata", "records.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for text := range strings.Lines(string(lines)) {
		if err := schema.Validate(text); err != nil {
			t.Errorf("%v\n%s", err, text)
		}
	}
	for name, edit := range map[string]func(string) string{
		"unknown field":   func(s string) string { return strings.Replace(s, `"round":1`, `"round":1,"extra":2`, 1) },
		"wrong type":      func(s string) string { return strings.Replace(s, `"round":1`, `"round":"1"`, 1) },
		"unknown kind":    func(s string) string { return strings.Replace(s, `"llm.call_started"`, `"llm.other"`, 1) },
		"payload of else": func(s string) string { return strings.Replace(s, `"llm.call_started"`, `"warning"`, 1) },
		"short prev":      func(s string) string { return strings.Replace(s, `"prev":"`, `"prev":"0`, 1) },
	} {
		text := strings.Split(string(lines), "\n")[3]
		bad := edit(text)
		if bad == text {
			t.Fatalf("%s: the edit changed nothing", name)
		}
		if schema.Validate(bad) == nil {
			t.Errorf("%s: the schema accepts %s", name, bad)
		}
	}
}

// TestGoldenRecordsShowEveryField compares each golden line with its kind's
// published schema. It has every field, so that each is pinned. Without a
// field's declaration the schema refuses the line, so that none can be
// forgotten.
func TestGoldenRecordsShowEveryField(t *testing.T) {
	text, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	var published struct {
		Defs map[string]json.RawMessage `json:"$defs"`
	}
	if err := json.Unmarshal(text, &published); err != nil {
		t.Fatal(err)
	}
	lines, err := os.ReadFile(filepath.Join("testdata", "records.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for text := range bytes.Lines(lines) {
		rec, err := Decode(bytes.TrimSpace(text))
		if err != nil {
			t.Fatal(err)
		}
		var payload map[string]any
		var def map[string]any
		if err := errors.Join(json.Unmarshal(rec.Payload, &payload), json.Unmarshal(published.Defs[string(rec.Kind)], &def)); err != nil {
			t.Fatalf("%s: %v", rec.Kind, err)
		}
		fields, _ := def["properties"].(map[string]any)
		declared := maps.Clone(fields)
		// Only the small schema of one kind is compiled for each field.
		refuses := func(properties map[string]any) bool {
			def["properties"], def["$defs"] = properties, map[string]any{"spilled": published.Defs["spilled"]}
			small, err := json.Marshal(def)
			if err != nil {
				t.Fatal(err)
			}
			schema, err := recordtest.Compile(small)
			if err != nil {
				t.Fatalf("%s: %v", rec.Kind, err)
			}
			return schema.Validate(string(rec.Payload)) != nil
		}
		if refuses(declared) {
			t.Errorf("%s: its own schema refuses the golden payload", rec.Kind)
		}
		for name := range fields {
			if _, ok := payload[name]; !ok && name != "spilled" {
				t.Errorf("%s: the golden record has no %s", rec.Kind, name)
				continue
			}
			if _, ok := payload[name]; !ok {
				continue
			}
			without := maps.Clone(declared)
			delete(without, name)
			if !refuses(without) {
				t.Errorf("%s: a schema that forgets %s accepts it", rec.Kind, name)
			}
		}
	}
}

// recordSchema makes the published schema from the payload types.
func recordSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	opts := &jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[json.RawMessage](): {Type: "object"},
		reflect.TypeFor[[]byte]():          {Type: "string", ContentEncoding: "base64"},
	}}
	spilled, err := jsonschema.For[[]Spilled](opts)
	if err != nil {
		t.Fatal(err)
	}
	hash := &jsonschema.Schema{Type: "string", Pattern: "^[0-9a-f]{64}$"}
	defs := map[string]*jsonschema.Schema{
		"spilled": spilled,
		"moved": {
			Type: "object", Description: "The whole payload is in a file.", Required: []string{"spilled"},
			Properties:           map[string]*jsonschema.Schema{"spilled": {Ref: "#/$defs/spilled"}},
			AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}},
		},
	}
	var kinds []any
	var cases []*jsonschema.Schema
	for _, p := range Payloads() {
		s, err := jsonschema.ForType(reflect.TypeOf(p), opts)
		if err != nil {
			t.Fatalf("%s: %v", p.Kind(), err)
		}
		if s.Properties == nil {
			s.Properties = map[string]*jsonschema.Schema{}
		}
		s.Properties["spilled"] = &jsonschema.Schema{Ref: "#/$defs/spilled"}
		defs[string(p.Kind())] = s
		kinds = append(kinds, string(p.Kind()))
		cases = append(cases, &jsonschema.Schema{
			If: &jsonschema.Schema{Properties: map[string]*jsonschema.Schema{"kind": {Const: jsonschema.Ptr[any](string(p.Kind()))}}},
			Then: &jsonschema.Schema{Properties: map[string]*jsonschema.Schema{"payload": {AnyOf: []*jsonschema.Schema{
				{Ref: "#/$defs/" + string(p.Kind())}, {Ref: "#/$defs/moved"},
			}}}},
		})
	}
	return &jsonschema.Schema{
		Schema: "https://json-schema.org/draft/2020-12/schema",
		ID:     "https://caisson.run/record.schema.json",
		Title:  "One line of a Caisson trace, and of `caisson run --json`",
		Type:   "object",
		Properties: map[string]*jsonschema.Schema{
			"schema_version": {Const: jsonschema.Ptr[any](SchemaVersion)},
			"seq":            {Type: "integer", Minimum: new(1.0), Description: "Counts from 1 without gaps."},
			"id":             {Type: "string", Pattern: "^rec_[0-9A-HJKMNP-TV-Z]{26}$"},
			"ts":             {Type: "string", Pattern: `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$`},
			"session":        {Type: "string", Pattern: "^ses_[0-9A-HJKMNP-TV-Z]{26}$"},
			"turn":           {Type: "string", Pattern: "^(trn_[0-9A-HJKMNP-TV-Z]{26})?$"},
			"parent":         {Type: "string", Description: "The id of the record that caused this one, or empty."},
			"actor":          {Type: "string", Enum: []any{string(ActorUser), string(ActorAgent), string(ActorSystem), string(ActorTool), string(ActorWorker)}},
			"kind":           {Type: "string", Enum: kinds},
			"payload":        {Type: "object"},
			"prev":           hash,
		},
		Required:             []string{"schema_version", "seq", "id", "ts", "session", "turn", "parent", "actor", "kind", "payload", "prev"},
		AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}},
		AllOf:                cases,
		Defs:                 defs,
	}
}

func decodePayload[P Payload](t *testing.T, rec Record) P {
	t.Helper()
	var p P
	if rec.Kind != p.Kind() {
		t.Fatalf("record %d is %s, want %s", rec.Seq, rec.Kind, p.Kind())
	}
	if err := json.Unmarshal(rec.Payload, &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestDocsListEveryKind compares the table in docs/records.md with the kinds,
// and its last column with the audit kinds.
func TestDocsListEveryKind(t *testing.T) {
	text, err := os.ReadFile("../../docs/records.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[Kind]string{}
	for l := range strings.Lines(string(text)) {
		cells := strings.Split(l, "|")
		if len(cells) != 5 {
			continue
		}
		for name := range strings.SplitSeq(cells[1], ",") {
			rows[Kind(strings.Trim(name, " `"))] = strings.TrimSpace(cells[3])
		}
	}
	for _, p := range Payloads() {
		audit, ok := rows[p.Kind()]
		if !ok {
			t.Errorf("docs/records.md does not list %s: add a row to its table of kinds", p.Kind())
		} else if (audit == "yes") != IsAudited(p.Kind()) {
			t.Errorf("the last column of %s in docs/records.md is %q, and AuditKinds differs", p.Kind(), audit)
		}
	}
}

func TestCostUSD(t *testing.T) {
	for want, micro := range map[string]*int64{"unknown": nil, "0.000000": new(int64(0)), "1.000000": new(int64(1_000_000)), "12.345678": new(int64(12_345_678))} {
		if got := CostUSD(micro); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func readSchema(t *testing.T) *recordtest.Schema {
	t.Helper()
	text, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	schema, err := recordtest.Compile(text)
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// The cases are from the W3C's own tests of implementations.
func TestParseTraceparent(t *testing.T) {
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for header, want := range map[string]string{
		good: good,
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00":        good[:53] + "00",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff":        good,
		"cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01":        good,
		"cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-x": good,
		"cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01.what":   "",
		"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01":        "",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what":   "",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01.":       "",
		"00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01":        "",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333.-01":        "",
		"00-00000000000000000000000000000000-b7ad6b7169203331-01":        "",
		"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01":        "",
		"00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01":         "",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1":         "",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-.0":        "",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331":           "",
		" " + good: "", good + "\n": "", good + "," + good: "", "": "",
	} {
		if got := ParseTraceparent(header); got != want {
			t.Errorf("%q is %q, want %q", header, got, want)
		}
	}
}
