package modelhttp

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Bounds of an answer's content. The longest outputs of models have 128,000 tokens,
// about half a megabyte; larger ones would only burden the records and every later
// request. The loop runs at most 256 calls of an answer.
const (
	MaxContentBytes = 16 << 20
	maxBlocks       = 4096
)

// Content counts what an answer holds, so that a stream of pieces can't grow without
// bound. The zero value is ready.
type Content struct{ bytes, blocks int }

// Add counts texts of the answer.
func (c *Content) Add(texts ...string) {
	for _, t := range texts {
		c.bytes += len(t)
	}
}

// AddBlock counts one more block, such as a call.
func (c *Content) AddBlock() { c.blocks++ }

// Check returns [ErrTooLarge] if the content is larger than any answer.
func (c *Content) Check() error {
	if c.bytes > MaxContentBytes || c.blocks > maxBlocks {
		return ErrTooLarge
	}
	return nil
}

// List is a list of an answer. A longer one than an answer can have is not decoded: its
// elements would take far more memory than their text.
type List[T any] []T

// UnmarshalJSON implements [json.Unmarshaler].
func (l *List[T]) UnmarshalJSON(data []byte) error {
	*l = nil
	if bytes.Equal(data, []byte("null")) {
		return nil
	}
	values := json.NewDecoder(bytes.NewReader(data))
	if start, err := values.Token(); err != nil || start != json.Delim('[') {
		return fmt.Errorf("%w: a list was expected", ErrMalformed)
	}
	for values.More() {
		if len(*l) == maxBlocks {
			return ErrTooLarge
		}
		var v T
		if err := values.Decode(&v); err != nil {
			return err
		}
		*l = append(*l, v)
	}
	return nil
}
