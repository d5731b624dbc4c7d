package worker

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/caisson-run/caisson/tools/verify"
)

// Ballot is a vote on the proposal.
type Ballot string

// The ballots.
const (
	BallotAgree    Ballot = "agree"
	BallotDisagree Ballot = "disagree"
	BallotAbstain  Ballot = "abstain"
)

// Envelope is the JSON that [Coordinate]'s workers answer with.
type Envelope struct {
	Role    Role   `json:"role"`
	Summary string `json:"summary"`
	// Claims are single statements, and Citations their support.
	Claims    []string `json:"claims"`
	Citations []string `json:"citations"`
	// Confidence is between 0 and 1.
	Confidence float64 `json:"confidence"`
	Ballot     Ballot  `json:"ballot"`
	// Answer is the synthesizer's: text, or a value in the requested format.
	Answer json.RawMessage `json:"answer,omitempty"`
}

func envelopeSchema(role Role) string {
	required, answer := `"role", "summary", "claims", "confidence", "citations", "ballot"`, ""
	if role == RoleSynthesizer {
		required += `, "answer"`
		answer = `,
    "answer": {}`
	}
	return fmt.Sprintf(`{
  "type": "object",
  "properties": {
    "role": {"const": %q},
    "summary": {"type": "string", "minLength": 1, "maxLength": 20000},
    "claims": {"type": "array", "maxItems": 100, "items": {"type": "string", "maxLength": 4000}},
    "confidence": {"type": "number", "minimum": 0, "maximum": 1},
    "citations": {"type": "array", "maxItems": 100, "items": {"type": "string", "maxLength": 4000}},
    "ballot": {"enum": ["agree", "disagree", "abstain"]}%s
  },
  "required": [%s],
  "additionalProperties": false
}`, role, answer, required)
}

var envelopeSchemas = sync.OnceValue(func() map[Role]*verify.Schema {
	out := map[Role]*verify.Schema{}
	for _, role := range []Role{RoleProposer, RoleCritic, RoleSynthesizer} {
		s, err := verify.CompileSchema([]byte(envelopeSchema(role)))
		if err != nil {
			panic("worker: schema of " + string(role) + ": " + err.Error())
		}
		out[role] = s
	}
	return out
})

// newEnvelopeFormat returns the format of a role's answers. answer is the format of the
// synthesizer's Answer, or nil for text.
func newEnvelopeFormat(role Role, answer *Format) *Format {
	request := "Answer with one JSON object and nothing else: no explanation and no code fence. It must be valid by this JSON Schema:\n\n" + envelopeSchema(role)
	if role == RoleSynthesizer && answer == nil {
		request += "\n\nThe value of answer is your answer to the question, as a text."
	}
	if role == RoleSynthesizer && answer != nil {
		request += "\n\nThis is about the value of answer: " + answer.Request
	}
	return &Format{Request: request, Check: func(text string) (string, []string) {
		value := TrimFence(text)
		problems := envelopeSchemas()[role].Check(value)
		if len(problems) > 0 || role != RoleSynthesizer {
			return value, problems
		}
		var e Envelope
		if err := json.Unmarshal([]byte(value), &e); err != nil {
			return value, []string{err.Error()}
		}
		if answer == nil {
			if !strings.HasPrefix(string(e.Answer), `"`) {
				problems = []string{"/answer: must be a text"}
			}
			return value, problems
		}
		_, problems = answer.Check(string(e.Answer))
		problems = slices.Clone(problems)
		for i, p := range problems {
			problems[i] = "/answer: " + p
		}
		return value, problems
	}}
}

func parseEnvelope(a Answer) *Envelope {
	if a.Status != StatusAnswered {
		return nil
	}
	var e Envelope
	if json.Unmarshal([]byte(a.Answer), &e) != nil {
		return nil
	}
	return &e
}

// TrimFence removes a code fence around the whole text.
func TrimFence(text string) string {
	text = strings.TrimSpace(text)
	first, rest, ok := strings.Cut(text, "\n")
	word := strings.TrimSpace(strings.TrimPrefix(first, "```"))
	body, closed := strings.CutSuffix(rest, "```")
	if !ok || !closed || !strings.HasPrefix(first, "```") || word != "" && word != "json" {
		return text
	}
	return strings.TrimSpace(body)
}
