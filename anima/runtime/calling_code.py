"""The LLVM text of the way into compiled code and back (see `calling`).

`field` and `set` load and store fields by name (see `fields`); names in braces are numbers and addresses of the
running interpreter. Where nothing else is said, a null result means that an exception is set.
"""

from __future__ import annotations

# A descriptor: words of 8 bytes. The head (its last words: the log of calls that a call is noted in, or 0, and what is
# written there of it: see `core.processes.Log`; whether it is so brief that it keeps the interpreter's lock); the other
# addresses that the program takes; the maker of each array (a callable, its arguments; 1 and the address of dtype, rank
# and sizes for plain memory of NumPy's; 0 and the position of a donated input whose array it is), of which the last is
# scratch memory if there is one more than results; the type of each result (0: leave it a NumPy array), or an array
# that was placed, as the result is to be; a record for each input.
HEAD = {"entry": 0, "inputs": 8, "results": 16, "makers": 24, "more": 32, "form": 40, "pool": 48, "log": 56,
        "call.hash": 64, "call.record": 72, "brief": 80}
HEAD_BYTES = 88
FORMS = {"single": 0, "tuple": 1, "list": 2}
# An input's record: its bytes; the 8 bytes of its dtype that tell kind, order and number; the dtype of its type,
# and the class of that (0 for an extended dtype); True or False, whether it is weak (0: NumPy arrays only);
# whether NumPy arrays are taken; the type whose objects hold such an element as NumPy does; the Python number
# that becomes one, and how; what it holds when it has been deleted (0: it is kept); the sharding of arrays that were
# placed (0: those that were not are taken, and only those); the rank (-1: any), the sizes (in place of them: the size).
RECORD = {"bytes": 0, "tag": 8, "want.dtype": 16, "class": 24, "want.weak": 32, "bare": 40, "scalar": 48,
           "number": 56, "kind": 64, "donated": 72, "lies": 80, "rank": 88}
RECORD_BYTES = 96

RUN = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare double @llvm.fabs.f64(double)

define ptr @run(ptr %self, ptr %given, i64 %count) {
  %words = field ptr %self, tuple_items
  %head = getelementptr i8, ptr %words, i64 {bytes_items}
  %inputs = field i64 %head, inputs
  %makers = field i64 %head, makers
  %results = field i64 %head, results
  %more = field i64 %head, more
  %pool.cell = field ptr %head, pool
  %pool = load atomic i64, ptr %pool.cell monotonic, align 8
  %ready = icmp ne i64 %pool, -1
  %right = icmp eq i64 %count, %inputs
  %begin = and i1 %ready, %right
  br i1 %begin, label %room, label %other
other:
  call void {Py_IncRef}(ptr {NotImplemented})
  ret ptr {NotImplemented}
room:
  %others = getelementptr i8, ptr %head, i64 {head_bytes}
  %recipes = getelementptr ptr, ptr %others, i64 %more
  %recipes.end = shl i64 %makers, 1
  %types = getelementptr ptr, ptr %recipes, i64 %recipes.end
  %records = getelementptr ptr, ptr %types, i64 %results
  %arrays = add i64 %inputs, %makers
  %all = add i64 %arrays, %more
  %args = alloca i64, i64 %all, align 16
  %numbers = alloca i64, i64 %inputs, align 16
  %kept = alloca ptr, i64 %arrays, align 16
  %kept.bytes = shl i64 %arrays, 3
  call void @llvm.memset.p0.i64(ptr %kept, i8 0, i64 %kept.bytes, i1 false)
  br label %inputs.loop

inputs.loop:
  %i = phi i64 [ 0, %room ], [ %i1, %take ]
  %record = phi ptr [ %records, %room ], [ %record1, %take ]
  %left = icmp slt i64 %i, %inputs
  br i1 %left, label %take, label %make.loop
take:
  %item.at = getelementptr ptr, ptr %given, i64 %i
  %item = load ptr, ptr %item.at
  %arg = getelementptr i64, ptr %args, i64 %i
  %hold = getelementptr ptr, ptr %kept, i64 %i
  %number = getelementptr i64, ptr %numbers, i64 %i
  %taken = call i1 @take(ptr %item, ptr %record, ptr %arg, ptr %hold, ptr %number)
  %length = field i64 %record, bytes
  %record1 = getelementptr i8, ptr %record, i64 %length
  %i1 = add i64 %i, 1
  br i1 %taken, label %inputs.loop, label %refused
refused:
  call void {Py_IncRef}(ptr {NotImplemented})
  br label %release

make.loop:
  %m = phi i64 [ 0, %inputs.loop ], [ %m1, %made ]
  %unmade = icmp slt i64 %m, %makers
  br i1 %unmade, label %make, label %start
make:
  %recipe.index = shl i64 %m, 1
  %recipe = getelementptr ptr, ptr %recipes, i64 %recipe.index
  %maker = load ptr, ptr %recipe
  %wishes.at = getelementptr ptr, ptr %recipe, i64 1
  %wishes = load ptr, ptr %wishes.at
  %given.over = icmp eq ptr %maker, null
  br i1 %given.over, label %over, label %create
over:
  %over.index = ptrtoint ptr %wishes to i64
  %over.at = getelementptr ptr, ptr %kept, i64 %over.index
  %over.array = load ptr, ptr %over.at
  call void {Py_IncRef}(ptr %over.array)
  br label %made
create:
  %maker.word = ptrtoint ptr %maker to i64
  %is.plain = icmp eq i64 %maker.word, 1
  br i1 %is.plain, label %numpy, label %ask
numpy:
  %made.dtype = load ptr, ptr %wishes
  %made.rank.at = getelementptr i64, ptr %wishes, i64 1
  %made.rank = load i32, ptr %made.rank.at
  %made.sizes = getelementptr i64, ptr %wishes, i64 2
  call void {Py_IncRef}(ptr %made.dtype)
  %plain = call ptr {PyArray_NewFromDescr}(ptr {ndarray}, ptr %made.dtype, i32 %made.rank, ptr %made.sizes, ptr null,
                                           ptr null, i32 0, ptr null)
  %no.plain = icmp eq ptr %plain, null
  br i1 %no.plain, label %release, label %made
ask:
  %created = call ptr {PyObject_Call}(ptr %maker, ptr %wishes, ptr null)
  %failed = icmp eq ptr %created, null
  br i1 %failed, label %release, label %made
made:
  %new = phi ptr [ %over.array, %over ], [ %plain, %numpy ], [ %created, %ask ]
  %place = add i64 %inputs, %m
  %new.at = getelementptr ptr, ptr %kept, i64 %place
  store ptr %new, ptr %new.at
  %new.arg = getelementptr i64, ptr %args, i64 %place
  %new.data = field i64 %new, data
  store i64 %new.data, ptr %new.arg
  %m1 = add i64 %m, 1
  br label %make.loop

start:
  ; scratch memory is an argument of its own: where its address is now come the other addresses
  %filled = add i64 %inputs, %results
  %scratch.arg = getelementptr i64, ptr %args, i64 %filled
  %scratch.some = icmp sgt i64 %makers, %results
  br i1 %scratch.some, label %align, label %go
align:
  %scratch.raw = load i64, ptr %scratch.arg
  %scratch.up = add i64 %scratch.raw, {scratch_over}
  %scratch.aligned = and i64 %scratch.up, {scratch_mask}
  br label %go
go:
  %scratch = phi i64 [ 0, %start ], [ %scratch.aligned, %align ]
  %more.bytes = shl i64 %more, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %scratch.arg, ptr %others, i64 %more.bytes, i1 false)
  %entry = field ptr %head, entry
  %arena = inttoptr i64 %scratch to ptr
  %pool.at = inttoptr i64 %pool to ptr
  %log = field ptr %head, log
  %quiet = icmp eq ptr %log, null
  br i1 %quiet, label %launch, label %note
note:
  %call.hash = field i64 %head, call.hash
  %call.record = field i64 %head, call.record
  %chain.old = field i64 %log, log.chain
  %chain.shifted = mul i64 %chain.old, {log_factor}
  %chain = add i64 %chain.shifted, %call.hash
  %begun = field i64 %log, log.begun
  %slot = and i64 %begun, {log_mask}
  %slot.words = shl i64 %slot, 1
  %notes = getelementptr i8, ptr %log, i64 {log_bytes}
  %note.chain = getelementptr i64, ptr %notes, i64 %slot.words
  %note.record = getelementptr i64, ptr %note.chain, i64 1
  store i64 %chain, ptr %note.chain
  store i64 %call.record, ptr %note.record
  %begun.now = add i64 %begun, 1
  set i64 %chain, %log, log.chain
  set i64 %begun.now, %log, log.begun
  set i64 1, %log, log.inside
  br label %launch
launch:
  %brief = field i64 %head, brief
  %is.brief = icmp ne i64 %brief, 0
  br i1 %is.brief, label %locked, label %unlocked
locked:
  call void %entry(ptr %args, ptr %arena, ptr %pool.at)
  br label %ran
unlocked:
  call void @enter(ptr %entry, ptr %args, ptr %arena, ptr %pool.at)
  br label %ran
ran:
  %error = call ptr {PyErr_Occurred}()
  %fine = icmp eq ptr %error, null
  br i1 %fine, label %over.now, label %release
over.now:
  br i1 %quiet, label %finish, label %note.end
note.end:
  set i64 0, %log, log.inside
  br label %finish

finish:
  %made.at = getelementptr ptr, ptr %kept, i64 %inputs
  %result = call ptr @collect(ptr %head, ptr %made.at, ptr %types, i64 %results)
  %no.result = icmp eq ptr %result, null
  br i1 %no.result, label %release, label %delete.loop
delete.loop:
  %k = phi i64 [ 0, %finish ], [ %k1, %delete.next ]
  %old.record = phi ptr [ %records, %finish ], [ %old.record1, %delete.next ]
  %deleting = icmp slt i64 %k, %inputs
  br i1 %deleting, label %delete, label %release
delete:
  %donated = field i64 %old.record, donated
  %gone.at = getelementptr ptr, ptr %given, i64 %k
  %gone = load ptr, ptr %gone.at
  %gone.type = field ptr %gone, type
  %gone.ours = icmp eq ptr %gone.type, {ConcreteArray}
  %gone.donated = icmp ne i64 %donated, 0
  %drop = and i1 %gone.ours, %gone.donated
  br i1 %drop, label %empty, label %delete.next
empty:
  %old = field ptr %gone, value
  %taker = inttoptr i64 %donated to ptr
  call void {Py_IncRef}(ptr %taker)
  set ptr %taker, %gone, value
  call void {Py_DecRef}(ptr %old)
  br label %delete.next
delete.next:
  %old.length = field i64 %old.record, bytes
  %old.record1 = getelementptr i8, ptr %old.record, i64 %old.length
  %k1 = add i64 %k, 1
  br label %delete.loop

release:
  %answer = phi ptr [ {NotImplemented}, %refused ], [ null, %numpy ], [ null, %ask ], [ null, %ran ],
                    [ null, %finish ], [ %result, %delete.loop ]
  br label %release.loop
release.loop:
  %r = phi i64 [ 0, %release ], [ %r1, %release.one ]
  %releasing = icmp slt i64 %r, %arrays
  br i1 %releasing, label %release.one, label %done
release.one:
  %kept.at = getelementptr ptr, ptr %kept, i64 %r
  %kept.one = load ptr, ptr %kept.at
  call void {Py_DecRef}(ptr %kept.one)
  %r1 = add i64 %r, 1
  br label %release.loop
done:
  ret ptr %answer
}

; Whether `item` is what the record describes; then its address is at `arg`, and what has to live meanwhile at `hold`.
define internal i1 @take(ptr %item, ptr %record, ptr %arg, ptr %hold, ptr %number) {
  %over.at = alloca i32
  %type = field ptr %item, type
  %lies = field ptr %record, lies
  %somewhere = icmp ne ptr %lies, null
  br i1 %somewhere, label %placed, label %anywhere
anywhere:
  %is.ours = icmp eq ptr %type, {ConcreteArray}
  br i1 %is.ours, label %ours, label %foreign
refuse:
  ret i1 false
placed:
  %is.placed = icmp eq ptr %type, {PlacedArray}
  br i1 %is.placed, label %where, label %refuse
where:
  %sharding = field ptr %item, sharding
  %committed = field ptr %item, committed
  %there = icmp eq ptr %sharding, %lies
  %fixed = icmp eq ptr %committed, {True}
  %stays = and i1 %there, %fixed
  br i1 %stays, label %ours, label %refuse
ours:
  %aval = field ptr %item, aval
  %value = field ptr %item, value
  %no.aval = icmp eq ptr %aval, null
  %no.value = icmp eq ptr %value, null
  %unset = or i1 %no.aval, %no.value
  br i1 %unset, label %refuse, label %typed
typed:
  %aval.type = field ptr %aval, type
  %aval.plain = icmp eq ptr %aval.type, {ShapedArray}
  %aval.ok = or i1 %aval.plain, %somewhere  ; where the sharding is the same, so is what a type tells of it
  br i1 %aval.ok, label %described, label %refuse
described:
  %weak = field i64 %aval, weak
  %want.weak = field i64 %record, want.weak
  %weak.ok = icmp eq i64 %weak, %want.weak
  %aval.dtype = field ptr %aval, aval_dtype
  %want.dtype = field ptr %record, want.dtype
  %same = icmp eq ptr %aval.dtype, %want.dtype
  %aval.class = field i64 %aval.dtype, type
  %class = field i64 %record, class
  %alike = icmp eq i64 %aval.class, %class
  %dtype.ok = or i1 %same, %alike
  %type.ok = and i1 %weak.ok, %dtype.ok
  br i1 %type.ok, label %inspect, label %refuse
foreign:
  %is.numpy = icmp eq ptr %type, {ndarray}
  br i1 %is.numpy, label %numpy, label %scalar
numpy:
  %bare = field i64 %record, bare
  %bare.ok = icmp ne i64 %bare, 0
  br i1 %bare.ok, label %inspect, label %refuse

inspect:
  %array = phi ptr [ %value, %described ], [ %item, %numpy ]
  %array.type = field ptr %array, type
  %array.ok = icmp eq ptr %array.type, {ndarray}
  br i1 %array.ok, label %look, label %refuse
look:
  %dtype = field ptr %array, dtype
  %tag = field i64 %dtype, dtype_tag
  %want.tag = field i64 %record, tag
  %tag.ok = icmp eq i64 %tag, %want.tag
  %flags = field i32 %array, flags
  %flags.set = and i32 %flags, {needed}
  %flags.ok = icmp eq i32 %flags.set, {needed}
  %ndim32 = field i32 %array, ndim
  %ndim = sext i32 %ndim32 to i64
  %dims = field ptr %array, dims
  %rank = field i64 %record, rank
  %rank.same = icmp eq i64 %ndim, %rank
  %any = icmp eq i64 %rank, -1
  %rank.ok = or i1 %rank.same, %any
  %sizes = getelementptr i8, ptr %record, i64 {record_bytes}
  %ok = and i1 %tag.ok, %flags.ok
  %ok1 = and i1 %ok, %rank.ok
  br i1 %ok1, label %dims.loop, label %refuse
dims.loop:
  %d = phi i64 [ 0, %look ], [ %d1, %dim ]
  %total = phi i64 [ 1, %look ], [ %total1, %dim ]
  %inside = icmp slt i64 %d, %ndim
  br i1 %inside, label %dim, label %measured
dim:
  %dim.at = getelementptr i64, ptr %dims, i64 %d
  %dim.size = load i64, ptr %dim.at
  %total1 = mul i64 %total, %dim.size
  %want.index = select i1 %any, i64 0, i64 %d
  %want.at = getelementptr i64, ptr %sizes, i64 %want.index
  %want.size = load i64, ptr %want.at
  %dim.same = icmp eq i64 %dim.size, %want.size
  %dim.ok = or i1 %dim.same, %any
  %d1 = add i64 %d, 1
  br i1 %dim.ok, label %dims.loop, label %refuse
measured:
  br i1 %any, label %compare, label %accept
compare:
  %want.total = load i64, ptr %sizes
  %total.ok = icmp eq i64 %total, %want.total
  br i1 %total.ok, label %accept, label %refuse
accept:
  call void {Py_IncRef}(ptr %array)
  store ptr %array, ptr %hold
  %data = field i64 %array, data
  store i64 %data, ptr %arg
  ret i1 true

scalar:
  %want.scalar = field ptr %record, scalar
  %scalar.ok = icmp eq ptr %type, %want.scalar
  br i1 %scalar.ok, label %within, label %python
within:
  %element = ptrtoint ptr %item to i64
  %element.at = add i64 %element, {head}
  store i64 %element.at, ptr %arg
  ret i1 true
python:
  %want.number = field ptr %record, number
  %number.ok = icmp eq ptr %type, %want.number
  br i1 %number.ok, label %convert, label %refuse
convert:
  %number.address = ptrtoint ptr %number to i64
  store i64 %number.address, ptr %arg
  %kind = field i64 %record, kind
  switch i64 %kind, label %refuse [ i64 1, label %float  i64 2, label %integer  i64 3, label %integer
                                    i64 4, label %truth  i64 5, label %whole  i64 6, label %whole ]
float:
  %double = field double %item, head
  %size = call double @llvm.fabs.f64(double %double)
  %large = fcmp ogt double %size, 0x47EFFFFFE0000000
  %single = fptrunc double %double to float
  store float %single, ptr %number
  br i1 %large, label %refuse, label %fits
truth:
  %is.true = icmp eq ptr %item, {True}
  %truth8 = zext i1 %is.true to i8
  store i8 %truth8, ptr %number
  ret i1 true
integer:
  %long = call i64 {PyLong_AsLongLongAndOverflow}(ptr %item, ptr %over.at)
  %over = load i32, ptr %over.at
  %in.range = icmp eq i32 %over, 0
  %low = trunc i64 %long to i32
  %again = sext i32 %low to i64
  %narrow = icmp eq i64 %again, %long
  %wide = icmp eq i64 %kind, 3
  %width.ok = or i1 %narrow, %wide
  %int.ok = and i1 %in.range, %width.ok
  store i64 %long, ptr %number
  br i1 %int.ok, label %fits, label %refuse
whole:
  ; an int that a float of 4 (24 bits) or 8 bytes (53 bits) holds exactly
  %whole64 = call i64 {PyLong_AsLongLongAndOverflow}(ptr %item, ptr %over.at)
  %whole.over = load i32, ptr %over.at
  %whole.in.range = icmp eq i32 %whole.over, 0
  %single.wanted = icmp eq i64 %kind, 5
  %most = select i1 %single.wanted, i64 16777216, i64 9007199254740992
  %least = sub i64 0, %most
  %not.high = icmp sle i64 %whole64, %most
  %not.low = icmp sge i64 %whole64, %least
  %exact = and i1 %not.high, %not.low
  %whole.ok = and i1 %exact, %whole.in.range
  %as.double = sitofp i64 %whole64 to double
  br i1 %single.wanted, label %as.float, label %as.wide
as.float:
  %as.single = fptrunc double %as.double to float
  store float %as.single, ptr %number
  br i1 %whole.ok, label %fits, label %refuse
as.wide:
  store double %as.double, ptr %number
  br i1 %whole.ok, label %fits, label %refuse
fits:
  ret i1 true
}

; The results as the caller wants them; null with an exception if there is no memory.
define internal ptr @collect(ptr %head, ptr %made, ptr %types, i64 %results) {
  %form = field i64 %head, form
  %alone = icmp eq i64 %form, 0
  br i1 %alone, label %single, label %several
single:
  %only = call ptr @wrap(ptr %made, ptr %types)
  ret ptr %only
several:
  %as.tuple = icmp eq i64 %form, 1
  br i1 %as.tuple, label %tuple, label %list
tuple:
  %new.tuple = call ptr {PyTuple_New}(i64 %results)
  br label %check
list:
  %new.list = call ptr {PyList_New}(i64 %results)
  br label %check
check:
  %out = phi ptr [ %new.tuple, %tuple ], [ %new.list, %list ]
  %no.memory = icmp eq ptr %out, null
  br i1 %no.memory, label %give.up, label %loop
give.up:
  ret ptr null
loop:
  %k = phi i64 [ 0, %check ], [ %k1, %next ]
  %some = icmp slt i64 %k, %results
  br i1 %some, label %put, label %done
put:
  %made.at = getelementptr ptr, ptr %made, i64 %k
  %type.at = getelementptr ptr, ptr %types, i64 %k
  %result = call ptr @wrap(ptr %made.at, ptr %type.at)
  %none = icmp eq ptr %result, null
  br i1 %none, label %drop, label %set
drop:
  call void {Py_DecRef}(ptr %out)
  ret ptr null
set:
  br i1 %as.tuple, label %set.tuple, label %set.list
set.tuple:
  %a = call i32 {PyTuple_SetItem}(ptr %out, i64 %k, ptr %result)
  br label %next
set.list:
  %b = call i32 {PyList_SetItem}(ptr %out, i64 %k, ptr %result)
  br label %next
next:
  %k1 = add i64 %k, 1
  br label %loop
done:
  ret ptr %out
}

; Takes the NumPy array that was made, and gives it back as an array of Anima's if there is a type for it.
define internal ptr @wrap(ptr %made, ptr %type.at) {
  %array = load ptr, ptr %made
  %aval = load ptr, ptr %type.at
  %raw = icmp eq ptr %aval, null
  br i1 %raw, label %bare, label %dress
bare:
  store ptr null, ptr %made
  ret ptr %array
dress:
  %type = field ptr %aval, type
  %is.example = icmp eq ptr %type, {PlacedArray}
  br i1 %is.example, label %place, label %plain
plain:
  %new.plain = call ptr {PyType_GenericAlloc}(ptr {ConcreteArray}, i64 0)
  %none = icmp eq ptr %new.plain, null
  br i1 %none, label %give.up, label %fill
give.up:
  ret ptr null
place:
  %new.placed = call ptr {PyType_GenericAlloc}(ptr {PlacedArray}, i64 0)
  %no.placed = icmp eq ptr %new.placed, null
  br i1 %no.placed, label %give.up, label %alike
alike:
  %example.aval = field ptr %aval, aval
  %sharding = field ptr %aval, sharding
  %committed = field ptr %aval, committed
  %is.cut = field ptr %aval, is_cut
  call void {Py_IncRef}(ptr %sharding)
  call void {Py_IncRef}(ptr %committed)
  call void {Py_IncRef}(ptr %is.cut)
  set ptr %sharding, %new.placed, sharding
  set ptr %committed, %new.placed, committed
  set ptr %is.cut, %new.placed, is_cut
  br label %fill
fill:
  %new = phi ptr [ %new.plain, %plain ], [ %new.placed, %alike ]
  %new.aval = phi ptr [ %aval, %plain ], [ %example.aval, %alike ]
  store ptr null, ptr %made
  %flags = field i32 %array, flags
  %frozen = and i32 %flags, {read_only}
  set i32 %frozen, %array, flags
  set ptr %array, %new, value
  call void {Py_IncRef}(ptr %new.aval)
  set ptr %new.aval, %new, aval
  ret ptr %new
}
"""


# The error indicator stays set from `callback` or `poll` to the end of `enter`.
LOCK = """
@arguments = private constant [3 x i8] c"KK\\00"
@no.memory = private constant [72 x i8] c"out of memory: a compiled program got none for its intermediate results\\00"

define void @enter(ptr %entry, ptr %args, ptr %arena, ptr %pool) {
  %thread = call ptr {PyEval_SaveThread}()
  call void %entry(ptr %args, ptr %arena, ptr %pool)
  call void {PyEval_RestoreThread}(ptr %thread)
  ret void
}

; `table`: the function, and of each callback its way in machine code, if it has one: its first word is the address of a
; function of the way and the data, which gives 0, or else leaves it to Python to tell why not.
define i32 @callback(ptr %table, i64 %number, ptr %data) {
  %ways = getelementptr ptr, ptr %table, i64 1
  %way.at = getelementptr ptr, ptr %ways, i64 %number
  %way = load atomic ptr, ptr %way.at acquire, align 8
  %none = icmp eq ptr %way, null
  br i1 %none, label %ask, label %go
go:
  %code = load ptr, ptr %way
  %failed = call i32 %code(ptr %way, ptr %data)
  %well = icmp eq i32 %failed, 0
  br i1 %well, label %done, label %ask
done:
  ret i32 0
ask:
  %function = load ptr, ptr %table
  %lock = call i32 {PyGILState_Ensure}()
  %result = call ptr (ptr, ptr, ...) {PyObject_CallFunction}(ptr %function, ptr @arguments, i64 %number, ptr %data)
  %raised = icmp eq ptr %result, null
  br i1 %raised, label %release, label %drop
drop:
  call void {Py_DecRef}(ptr %result)
  br label %release
release:
  call void {PyGILState_Release}(i32 %lock)
  %status = zext i1 %raised to i32
  ret i32 %status
}

define void @reach(i64 %bytes) {
  %room = alloca i8, i64 %bytes
  store volatile i8 0, ptr %room
  ret void
}

define void @exhausted() {
  %lock = call i32 {PyGILState_Ensure}()
  call void {PyErr_SetString}(ptr {MemoryError}, ptr @no.memory)
  call void {PyGILState_Release}(i32 %lock)
  ret void
}

define i32 @poll() {
  %lock = call i32 {PyGILState_Ensure}()
  %status = call i32 {PyErr_CheckSignals}()
  call void {PyGILState_Release}(i32 %lock)
  ret i32 %status
}

define i32 @look(ptr %flag) {
  %told = load atomic i64, ptr %flag monotonic, align 8
  %quiet = icmp eq i64 %told, 0
  br i1 %quiet, label %check, label %stop
check:
  %status = call i32 @poll()
  %none = icmp eq i32 %status, 0
  br i1 %none, label %on, label %tell
tell:
  store atomic i64 1, ptr %flag monotonic, align 8
  br label %stop
stop:
  ret i32 1
on:
  ret i32 0
}
"""
