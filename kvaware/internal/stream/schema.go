// SPDX-License-Identifier: Apache-2.0

package stream

// A node is a JSON container whose keys or elements mean something. All
// others are nodeSkip: passed over without looking at what they hold, so that
// an equally named key elsewhere never misleads.
type node uint8

const (
	nodeSkip node = iota
	nodeRoot
	nodeBatch // a top-level array: one answer per prompt
	nodeChoices
	nodeChoice
	nodeDelta // choices[].delta and choices[].message
	nodeToolCalls
	nodeToolCall
	nodeFunction
	nodeAudio
	nodeParts // content given as a list of blocks
	nodePart
	nodeIDs // elements are only counted
	nodeUsage
	nodeUsageDetails
	nodeXGroq
	nodeTimings
	nodeProgress
	nodeMessage // Ollama's message, and that of Anthropic's message_start
	nodeBlockDelta
	nodeContentBlock
	nodeResponse
	nodeMetaInfo
	nodeMetaFinish
	nodeToken
	nodeDetails
	nodeBestOf
	nodeBestOfItem
	nodeOutputIDs
	nodeCount
)

// A field is what a value means, from its node and key.
type field uint8

const (
	fieldNone field = iota

	// Fields of the event object itself. Below 64: objectFacts.texts is a set
	// of these.
	fieldType
	fieldObject
	fieldID
	fieldChoices
	fieldUsage
	fieldXGroq
	fieldTimings
	fieldProgress
	fieldError
	fieldMessage
	fieldDelta
	fieldContentBlock
	fieldResponse
	fieldContent
	fieldRootText
	fieldThinking
	fieldOutput
	fieldOutputIDs
	fieldTokens
	fieldMetaInfo
	fieldToken
	fieldGeneratedText
	fieldDetails
	fieldDone
	fieldDoneReason
	fieldEvalCount
	fieldPromptEvalCount
	fieldStop
	fieldStopType
	fieldPredicted
	fieldEvaluated
	fieldIndex
	fieldStopReason
	fieldSGLangMark
	fieldVLLMMark
	fieldTransfer // vLLM's note of a KV transfer between prefill and decode

	// Fields of inner objects.
	fieldChoice
	fieldBatchItem
	fieldChoiceIndex
	fieldChoiceDelta
	fieldChoiceFinish
	fieldTokenIDs
	fieldText       // generated when not empty
	fieldInner      // the same, of reasoning or a tool call
	fieldParts      // a text, or a list of blocks
	fieldInnerParts // the same, of reasoning
	fieldPart
	fieldRole
	fieldToolCalls
	fieldToolCall
	fieldFunction
	fieldArguments
	fieldAudio
	fieldCompletionTokens
	fieldPromptTokens
	fieldInputTokens
	fieldCachedTokens
	fieldCacheRead
	fieldCacheCreation
	fieldUsageDetails
	fieldResponseID
	fieldPromptN
	fieldCacheN
	fieldPredictedN
	fieldProgressTotal
	fieldProgressCache
	fieldMetaCompletion
	fieldMetaPrompt
	fieldMetaCached
	fieldMetaFinish
	fieldGeneratedTokens
	fieldInputLength
	fieldPrefill
	fieldBestOf
	fieldBestOfItem
	fieldOutputID
	fieldCount
)

const (
	asObject = iota
	asArray
)

// opens says which node a value of a field opens.
var opens = [fieldCount][2]node{
	fieldBatchItem:    {asObject: nodeRoot},
	fieldChoices:      {asArray: nodeChoices},
	fieldChoice:       {asObject: nodeChoice},
	fieldChoiceDelta:  {asObject: nodeDelta},
	fieldTokenIDs:     {asArray: nodeOutputIDs},
	fieldParts:        {asArray: nodeParts},
	fieldInnerParts:   {asArray: nodeParts},
	fieldPart:         {asObject: nodePart},
	fieldToolCalls:    {asArray: nodeToolCalls},
	fieldToolCall:     {asObject: nodeToolCall},
	fieldFunction:     {asObject: nodeFunction},
	fieldAudio:        {asObject: nodeAudio},
	fieldUsage:        {asObject: nodeUsage},
	fieldUsageDetails: {asObject: nodeUsageDetails},
	fieldXGroq:        {asObject: nodeXGroq},
	fieldTimings:      {asObject: nodeTimings},
	fieldProgress:     {asObject: nodeProgress},
	fieldMessage:      {asObject: nodeMessage},
	fieldDelta:        {asObject: nodeBlockDelta},
	fieldContentBlock: {asObject: nodeContentBlock},
	fieldResponse:     {asObject: nodeResponse},
	fieldContent:      {asArray: nodeParts},
	fieldOutput:       {asArray: nodeParts},
	fieldOutputIDs:    {asArray: nodeIDs},
	fieldTokens:       {asArray: nodeIDs},
	fieldMetaInfo:     {asObject: nodeMetaInfo},
	fieldMetaFinish:   {asObject: nodeMetaFinish},
	fieldToken:        {asObject: nodeToken},
	fieldDetails:      {asObject: nodeDetails},
	fieldPrefill:      {asArray: nodeIDs},
	fieldBestOf:       {asArray: nodeBestOf},
	fieldBestOfItem:   {asObject: nodeBestOfItem},
}

// elements gives the field of an array's elements.
var elements = [nodeCount]field{
	nodeBatch:     fieldBatchItem,
	nodeChoices:   fieldChoice,
	nodeToolCalls: fieldToolCall,
	nodeParts:     fieldPart,
	nodeBestOf:    fieldBestOfItem,
	nodeOutputIDs: fieldOutputID,
}

// How a string value is read.
type reading uint8

const (
	readPast  reading = iota // of no interest
	readEmpty                // only whether it is empty
	readWhole                // its bytes, up to captureMax
)

var readings = [fieldCount]reading{
	fieldType:          readWhole,
	fieldObject:        readWhole,
	fieldID:            readWhole,
	fieldResponseID:    readWhole,
	fieldDoneReason:    readWhole,
	fieldStopType:      readWhole,
	fieldStopReason:    readWhole,
	fieldChoiceFinish:  readWhole,
	fieldMetaFinish:    readWhole,
	fieldError:         readEmpty,
	fieldDelta:         readEmpty,
	fieldResponse:      readEmpty,
	fieldContent:       readEmpty,
	fieldRootText:      readEmpty,
	fieldThinking:      readEmpty,
	fieldGeneratedText: readEmpty,
	fieldToken:         readEmpty,
	fieldText:          readEmpty,
	fieldInner:         readEmpty,
	fieldParts:         readEmpty,
	fieldInnerParts:    readEmpty,
	fieldPart:          readEmpty,
	fieldRole:          readEmpty,
	fieldArguments:     readEmpty,
}
