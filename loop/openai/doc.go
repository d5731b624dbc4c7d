// Package openai implements [loop.Model] for endpoints with OpenAI's Chat Completions
// or Responses API: OpenAI, Ollama's /v1, vLLM, llama.cpp, OpenRouter, Groq, Mistral,
// and Gemini's compatible layer.
//
// The library openai-go builds requests and reads server-sent events. This package
// decodes the answers itself, because the library is strict where endpoints differ from
// the standard: arguments as objects, calls without index or ID, errors in a stream
// with status 200, missing usage, missing finish reasons.
//
//	Complete ──▶ request (openai-go) ──▶ watcher (status, caps, silence) ──▶ endpoint
//	                                                                           │
//	loop.Response ◀── assembly ◀── wire (tolerant) ◀── one JSON, or events ◀───┘
package openai
