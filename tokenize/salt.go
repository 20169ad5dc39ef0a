// SPDX-License-Identifier: Apache-2.0

package tokenize

// SetSalter has the next Reads take salter's result for the salt of a request,
// where its API is one whose engines take a salt. Given is what the client gave
// ("" if nothing), nested what it gave in nvext: the text of a string, else the
// value as compact JSON. The result must not need escaping in JSON and not be
// empty. Nil takes salts as they are given.
//
// [Reader.Salting] then tells how the body must be changed for the engine to take
// that salt as well.
func (rd *Reader) SetSalter(salter func(given, nested string) string) { rd.salter = salter }

// saltMember is the member of the body with which engines part caches: vLLM's and
// SGLang's cache_salt, but extra_key where SGLang is spoken to in its own API. It
// is keyOther where no engine takes one. llama.cpp takes none either, but what is
// in its form may have been sent to another engine's completions.
func saltMember(kind Kind) (k key, name string) {
	switch kind {
	case OpenAIChat, OpenAICompletions, OpenAIResponses, OpenAIEmbeddings, LlamaCompletion:
		return keyCacheSalt, "cache_salt"
	case SGLangGenerate:
		return keyExtraKey, "extra_key"
	}
	return keyOther, ""
}

// readSalt reads what parts caches by the client's wish: cache_salt, at top level
// or in nvext (Dynamo), and SGLang's extra_key, which it puts behind the salt.
func (rd *Reader) readSalt(f *fields) {
	req := &rd.req
	rd.salted = ""
	member := keyOther
	if rd.salter != nil {
		member, _ = saltMember(req.Kind)
	}
	nested := rd.member(f[keyNvext], keyCacheSalt)
	salt, extra := f[keyCacheSalt], rd.saltText(f[keyExtraKey])
	switch {
	case member == keyCacheSalt:
		rd.salted = rd.salter(rd.saltText(salt), rd.saltText(nested))
		req.CacheSalt = rd.salted + extra
		return
	case member == keyExtraKey:
		rd.salted = rd.salter(extra, "")
		extra = rd.salted
	}
	if rd.kindOf(salt) != stringValue {
		salt = nested
	}
	req.CacheSalt = string(rd.stringOf(salt)) + extra
}

// saltText returns a salt's text, or another value as compact JSON.
func (rd *Reader) saltText(n uint32) string {
	switch rd.kindOf(n) {
	case nullValue:
		return ""
	case stringValue:
		return string(rd.stringOf(n))
	}
	return string(rd.compact(rd.span(n)))
}

// Edit is a change of a body: Text takes the place of the bytes [Start, End).
type Edit struct {
	Start, End int
	Text       string
}

// Salting appends the changes by which an engine takes the salter's result for the
// salt of the request that was read last, in the body's order; none where its API
// takes no salt. All that the client gave in that place is replaced, duplicate
// keys and all, so that it does not matter which of them a reader takes. If it gave
// nothing, the member comes last, where it counts even against a spelling of its
// key that is not known here.
func (rd *Reader) Salting(edits []Edit) []Edit {
	if rd.salted == "" {
		return edits
	}
	member, name := saltMember(rd.req.Kind)
	quoted := `"` + rd.salted + `"`
	nodes := rd.scanner.nodes
	given := false
	for c := uint32(1); c < nodes[0].next; c = nodes[c].next {
		switch {
		case nodes[c].key == member:
			given = true
			edits = append(edits, nodes[c].replacement(quoted))
		case nodes[c].key == keyNvext && nodes[c].kind == objectValue && member == keyCacheSalt:
			for n := c + 1; n < nodes[c].next; n = nodes[n].next {
				if nodes[n].key == keyCacheSalt {
					edits = append(edits, nodes[n].replacement(quoted))
				}
			}
		}
	}
	if given {
		return edits
	}
	brace := int(nodes[0].end) - 1
	comma := ","
	if rd.emptyRoot() {
		comma = ""
	}
	return append(edits, Edit{brace, brace, comma + `"` + name + `":` + quoted})
}

// replacement is the edit that puts another value in the place of n.
func (n *node) replacement(value string) Edit {
	e := Edit{int(n.start), int(n.end), value}
	if n.kind == stringValue {
		e.Start--
		e.End++
	}
	return e
}

// emptyRoot tells whether the body is an object without members. Not all members
// are recorded, so the byte before the brace has to tell.
func (rd *Reader) emptyRoot() bool {
	root := &rd.scanner.nodes[0]
	return skipSpace(rd.scanner.body, int(root.start)+1) == int(root.end)-1
}
