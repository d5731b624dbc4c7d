// Package anthropic implements [loop.Model] for Anthropic's Messages API.
//
// The library anthropic-sdk-go builds requests and reads server-sent events. This
// package decodes the answers itself, with the bounds and failure classes that all
// adapters share.
package anthropic
