package tools

import (
	"context"
	"encoding/json"
	"fmt"
)

// NewFunc returns a Factory for a tool that is one function. Each call decodes its
// input, which has passed def.InputSchema, into an In; the returned text is the
// result. run is called by several goroutines if calls run in parallel. The model
// sees an error only if it is an [Error] that is visible. The tool is enabled, and
// runs on the host unless def has another place.
func NewFunc[In any](def Definition, run func(ctx context.Context, in In) (text string, err error)) Factory {
	def.EnabledByDefault = true
	if def.Runs == "" {
		def.Runs = PlaceHost
	}
	return func() Tool { return &funcTool[In]{def, run} }
}

type funcTool[In any] struct {
	def Definition
	run func(ctx context.Context, in In) (string, error)
}

// Definition implements [Tool].
func (t *funcTool[In]) Definition() Definition { return t.def }

// Execute implements [Tool].
func (t *funcTool[In]) Execute(ctx context.Context, call *Call) (Output, error) {
	var in In
	if err := json.Unmarshal(call.Input, &in); err != nil {
		return Output{}, fmt.Errorf("decode %s input: %w", t.def.Name, err)
	}
	text, err := t.run(ctx, in)
	if err != nil {
		return Output{}, err
	}
	return Output{Content: []Block{{Text: text}}, Success: true}, nil
}
