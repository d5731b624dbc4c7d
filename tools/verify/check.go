package verify

import "encoding/json"

// The kinds of checks.
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
	// maxChecks is the number of checks.
	maxChecks = 100
	// maxTextBytes bounds a file whose text is looked at; texts of the input
	// are bounded by the input.
	maxTextBytes = 4 << 20
	// maxHashBytes bounds a file that is hashed.
	maxHashBytes = 256 << 20
	// maxReasonBytes bounds what one result says.
	maxReasonBytes = 500
)

// check is one check of an input, as the model wrote it.
type check struct {
	ID     string  `json:"id"`
	Kind   string  `json:"kind"`
	Target *string `json:"target_text"`
	Path   string  `json:"path"`
	// Value is a string, or a whole number for min_length.
	Value           json.RawMessage `json:"value"`
	Values          []string        `json:"values"`
	CaseInsensitive bool            `json:"case_insensitive"`
	Schema          json.RawMessage `json:"schema"`

	Command string `json:"cmd"`
	// Exit and Timeout are whole numbers, in any spelling of JSON.
	Exit    float64 `json:"expect_exit"`
	Stdout  string  `json:"expect_stdout_contains"`
	Timeout float64 `json:"timeout_seconds"`
}

// Result is how one check ended, as the model and records see it.
//
//	{"id":"check1","kind":"contains","passed":false,"reason":"\"total\" is not in it"}
type Result struct {
	ID     string `json:"id"`
	Kind   string `json:"kind"`
	Passed bool   `json:"passed"`
	// Reason says what was found; it is never empty.
	Reason string `json:"reason"`
	// ExitCode is that of a shell check whose command ended by itself.
	ExitCode *int `json:"exit_code,omitempty"`
}

// Report is what a call gives.
//
//	{"tool":"verify","checks_run":1,"results":[…],"all_passed":false,"summary":"0 of 1 checks passed"}
type Report struct {
	Tool      string   `json:"tool"`
	Run       int      `json:"checks_run"`
	Results   []Result `json:"results"`
	AllPassed bool     `json:"all_passed"`
	Summary   string   `json:"summary"`
}
