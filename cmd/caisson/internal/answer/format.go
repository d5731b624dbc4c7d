// Package answer makes the form that --output-schema asks of an answer.
package answer

import (
	"fmt"
	"strings"

	"github.com/caisson-run/caisson/loop/worker"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/tools/verify"
)

// MaxSchemaBytes bounds a schema: the model gets it with the task.
const MaxSchemaBytes = 256 << 10

// NewFormat returns the form of an answer that is one JSON value, valid by a JSON Schema
// of draft 2020-12.
func NewFormat(schema []byte) (*runner.AnswerFormat, error) {
	compiled, err := verify.CompileSchema(schema)
	if err != nil {
		return nil, fmt.Errorf("the schema %w", err)
	}
	return &runner.AnswerFormat{
		Request: "Your answer must be one JSON value and nothing else: no explanation and no code fence. It must be valid by this JSON Schema:\n\n" + strings.TrimSpace(string(schema)),
		Check: func(text string) (string, []string) {
			value := worker.TrimFence(text)
			return value, compiled.Check(value)
		},
	}, nil
}
