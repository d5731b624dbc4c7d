package verify

import "encoding/json"

// Kinds of checks.
const (
	kindContains    = "contains"
	kindNotContains = "not_contains"
	kindContainsAny = "contains_any"
	kindContainsAll = "contains_all"
	kindRegex       = "regex_match"
	kindMinLength   = "min_length"
	kindJSONSchema  = "json_schema"
	kindSHA256      = "sha256"
	kindFileExists  = "file_exists"
	kindShell       = "shell"
)

// Bounds of one call.
const (
	// maxChecks is the maximum number of checks.
	maxChecks = 100
	// maxTextBytes is the maximum size of a file that is checked as text. Texts of
	// the input are limited by the input's own size.
	maxTextBytes = 4 << 20
	// maxHashBytes is the maximum size of a file that is hashed.
	maxHashBytes = 256 << 20
	// maxReasonBytes is the maximum size of the reason of one result.
	maxReasonBytes = 500
)

// check is one check of an input, as the model wrote it.
type check struct {
	ID     string  `json:"id"`
	Kind   string  `json:"kind"`
	Target *string `json:"target_text"`
	Path   string  `json:"path"`
	// Value is a string; for min_length it is an integer.
	Value           json.RawMessage `json:"value"`
	Values          []string        `json:"values"`
	CaseInsensitive bool            `json:"case_insensitive"`
	Schema          json.RawMessage `json:"schema"`

	Command string `json:"cmd"`
	// Exit and Timeout are integers in any JSON notation, such as 3.0.
	Exit    float64 `json:"expect_exit"`
	Stdout  string  `json:"expect_stdout_contains"`
	Timeout float64 `json:"timeout_seconds"`
}

// Result is the result of one check, as the model and records see it.
//
//	{"id":"check1","kind":"contains","passed":false,"reason":"\"total\" is not in it"}
type Result struct {
	ID     string `json:"id"`
	Kind   string `json:"kind"`
	Passed bool   `json:"passed"`
	// Reason describes the finding. It is never empty.
	Reason string `json:"reason"`
	// ExitCode is the exit code of a shell check's command. It is nil if the
	// command was stopped or killed, and for other kinds.
	ExitCode *int `json:"exit_code,omitempty"`
}

// Report is the result of a call.
//
//	{"tool":"verify","checks_run":1,"results":[…],"all_passed":false,"summary":"0 of 1 checks passed"}
type Report struct {
	Tool      string   `json:"tool"`
	Run       int      `json:"checks_run"`
	Results   []Result `json:"results"`
	AllPassed bool     `json:"all_passed"`
	Summary   string   `json:"summary"`
}
