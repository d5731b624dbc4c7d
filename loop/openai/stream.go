package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/openai/openai-go/v3/packages/ssestream"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/modelhttp"
)

// readStream reads an answer in pieces. An answer is complete only with a finish
// reason or [DONE]. If the stream ends without, the answer may be cut, and nothing
// of it is used.
func readStream(res *http.Response, onDelta func(loop.Delta)) (loop.Response, error) {
	a := &assembly{onDelta: onDelta}
	events := ssestream.NewDecoder(res)
	begun := false // whether a piece of the answer came
	for events.Next() {
		data := bytes.TrimSpace(events.Event().Data)
		if bytes.HasPrefix(data, []byte("[DONE]")) {
			a.done = true
			return a.buildResponse(), nil
		}
		if len(data) == 0 {
			continue
		}
		piece, err := decodeCompletion(data)
		if err != nil {
			if failure, ok := errors.AsType[*modelhttp.StreamError](err); ok {
				failure.Begun = begun
			}
			return loop.Response{}, err
		}
		begun = true
		a.addCompletion(piece)
		if err := a.content.Check(); err != nil {
			return loop.Response{}, err
		}
	}
	switch err := events.Err(); {
	case a.done:
		// Only the usage can be missing.
		return a.buildResponse(), nil
	case err != nil:
		return loop.Response{}, err
	default:
		return loop.Response{}, modelhttp.ErrCut
	}
}

// readWhole reads an answer in one piece.
func readWhole(body []byte, onDelta func(loop.Delta)) (loop.Response, error) {
	whole, err := decodeCompletion(body)
	if err != nil {
		return loop.Response{}, err
	}
	if len(whole.Choices) == 0 {
		return loop.Response{}, fmt.Errorf("%w: an answer without choices", modelhttp.ErrMalformed)
	}
	a := &assembly{onDelta: onDelta}
	a.addCompletion(whole)
	if err := a.content.Check(); err != nil {
		return loop.Response{}, err
	}
	return a.buildResponse(), nil
}

// decodeCompletion decodes one JSON value of an answer. If it contains an error, that
// is returned as a *[modelhttp.StreamError].
func decodeCompletion(data []byte) (completion, error) {
	var c completion
	if len(data) > 2*modelhttp.MaxContentBytes { // twice for escapes; decoding takes time
		return c, modelhttp.ErrTooLarge
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return c, fmt.Errorf("%w: %w", modelhttp.ErrMalformed, err)
	}
	if c.hasFailed() {
		return c, &modelhttp.StreamError{Body: data}
	}
	return c, nil
}
